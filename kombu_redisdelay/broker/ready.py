"""What an operator does with ready messages: look at them, remove them, schedule them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL, portions
from kombu_redisdelay.broker.server.replies import answers
from kombu_redisdelay.broker.server.scripts import CLEAR, REMOVE_READY, SCHEDULE_READY
from kombu_redisdelay.broker.server.wire import Argument
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.walk import walk

#: Messages that Redis looks at in one script to find those that are to be removed: some milliseconds.
SEARCHED_PER_CALL = 10_000


@dataclass(frozen=True, slots=True)
class Ready:
    """A ready message.

    Attributes:
        step: its priority step.
        position: how many messages of the queue are taken before it.
        is_sure: as :attr:`Entry.is_sure <kombu_redisdelay.broker.walk.Entry.is_sure>`.
    """

    queue: str
    step: int
    position: int
    payload: bytes
    is_sure: bool


class ReadyLists:
    """The ready messages in *store*, queue by queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def counts(self, queues: Sequence[str]) -> list[int]:
        """How many messages each of *queues* has."""
        commands = (("LLEN", key) for queue in queues for key in self._store.ready_keys(queue))
        lengths, lists = answers(self._store.server, commands), len(self._store.steps)
        return [sum(lengths[index : index + lists]) for index in range(0, len(lengths), lists)]

    def iter(self, queue: str, texts: Sequence[str] = (), skip: int = 0) -> Iterator[Ready]:
        """The messages of *queue* in the order in which they are taken, read page by page. See
        :func:`~kombu_redisdelay.broker.walk.walk` for what may be included twice.

        Arguments:
            texts: only messages that contain one of these texts.
            skip: how many to pass over first.
        """
        server, keys = self._store.server, self._store.ready_keys(queue)
        lengths = answers(server, (("LLEN", key) for key in keys))
        for index, step in enumerate(self._store.steps):
            skipped = min(skip, lengths[index])
            skip -= skipped
            if not lengths[index]:
                continue
            for entry in walk(server, keys[: index + 1], texts, skip=skipped):
                yield Ready(queue, step, entry.taken_before, entry.data, entry.is_sure)

    def tail(self, queue: str, step: int, first: int, size: int) -> list[Ready]:
        """At most *size* messages of one list from the end where publishers put them. The *first* ones are
        left out, and so is the half that is taken first: :meth:`iter` begins there."""
        server, keys = self._store.server, self._store.ready_keys(queue)
        index = self._store.steps.index(step)
        lengths = answers(server, (("LLEN", key) for key in keys[: index + 1]))
        end = min(first + size, (lengths[-1] + 1) // 2)
        found = server.call("LRANGE", keys[index], first, end - 1) if first < end else []
        last = sum(lengths) - 1
        return [
            Ready(queue, step, last - position, payload, is_sure=True)
            for position, payload in enumerate(found, first)
        ]

    def remove(self, message: Ready) -> bool:
        """Remove a message. Redis looks for it from the end that was nearer. Returns ``False`` if it is not
        ready any more, or has been delivered meanwhile and came back."""
        return any(self.remove_all(message.queue, [message]))

    def remove_all(self, queue: str, messages: Iterable[Ready]) -> Iterator[Ready]:
        """Do the same as :meth:`remove` for *messages* of *queue*, in portions. Yields those that were
        removed."""
        for step, some in self._searches(queue, messages):
            keys = self._store.keys(queue)
            args: list[Argument] = [part for look_from, each in some for part in (look_from, each.payload)]
            reply = REMOVE_READY(self._store.server, (keys.ready_at(step), keys.wake), args)
            yield from (each for (_, each), done in zip(some, reply, strict=True) if done)

    def clear(self, queue: str) -> int:
        """Remove all messages of *queue*. Returns how many there were."""
        keys = self._store.ready_keys(queue)
        count = CLEAR(self._store.server, (*keys, self._store.keys(queue).wake), (len(keys), 0))
        return int(count) + self._store.clear_keys(queue)

    def schedule_all(
        self,
        queue: str,
        messages: Iterable[Ready],
        due: Callable[[Ready], tuple[str, float]],
        rewritten: Callable[[Ready], bytes] = attrgetter("payload"),
    ) -> Iterator[Ready]:
        """Move *messages* of *queue* into the schedule, in the same way. Yields those that were ready.

        Arguments:
            due: tells the id of a message, and when it is due, in ms since the epoch.
            rewritten: tells how a message is written in the schedule.
        """
        keys = self._store.keys(queue)
        for step, some in self._searches(queue, messages):
            args: list[Argument] = [step, keys.separator]
            for look_from, each in some:
                text = rewritten(each)
                args += (look_from, each.payload, "" if text == each.payload else text, *due(each))
            used = (keys.ready_at(step), keys.wake, *keys.scheduling, keys.ready)
            reply = SCHEDULE_READY(self._store.server, used, args)
            yield from (each for (_, each), done in zip(some, reply, strict=True) if done)

    def _searches(
        self, queue: str, messages: Iterable[Ready]
    ) -> Iterator[tuple[int, list[tuple[int, Ready]]]]:
        """Split *messages* into portions for one script each. Yields their step, and each with the end to
        look for it from: 1 is where publishers put messages, -1 the other one."""
        server, keys = self._store.server, self._store.ready_keys(queue)
        for some in portions(messages, _size, MESSAGES_PER_CALL, BYTES_PER_CALL):
            for step, of_step in groupby(some, attrgetter("step")):
                index = self._store.steps.index(step)
                lengths = answers(server, (("LLEN", key) for key in keys[: index + 1]))
                distances = [(_distance(each, sum(lengths[:-1]), lengths[-1]), each) for each in of_step]
                for portion in portions(
                    distances, lambda pair: abs(pair[0]), MESSAGES_PER_CALL, SEARCHED_PER_CALL
                ):
                    yield step, [(-1 if distance < 0 else 1, each) for distance, each in portion]


def _distance(message: Ready, taken_before: int, length: int) -> int:
    """How many messages of its list Redis looks at from the nearer end; negative from the end that is taken.

    Arguments:
        taken_before: how many are in the lists before.
        length: of its list.
    """
    position = message.position - taken_before
    return -max(1, position) if 2 * position < length else max(1, length - position)


def _size(message: Ready) -> int:
    return len(message.payload)
