"""What an operator does with ready messages: look at them, remove them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter

from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL, portions
from kombu_redisdelay.broker.server.replies import answers
from kombu_redisdelay.broker.server.scripts import REMOVE_READY
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.walk import walk

#: Messages that Redis looks at in one script to find those that are to be removed: some milliseconds.
SEARCHED_PER_CALL = 10_000


@dataclass(frozen=True, slots=True)
class Ready:
    """A ready message.

    Attributes:
        step: its priority step.
        place: how many messages of the queue are taken before it.
        is_sure: as :attr:`Entry.is_sure <kombu_redisdelay.broker.walk.Entry.is_sure>`.
    """

    queue: str
    step: int
    place: int
    payload: bytes
    is_sure: bool


class ReadyLists:
    """The ready messages in *store*, queue by queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def count(self, queues: Sequence[str]) -> int:
        commands = (("LLEN", key) for queue in queues for key in self._store.ready_keys(queue))
        return sum(answers(self._store.server, commands))

    def iter(self, queue: str, texts: Sequence[str] = (), skip: int = 0) -> Iterator[Ready]:
        """The messages of *queue* in the order in which they are taken, read page by page. See
        :func:`~kombu_redisdelay.broker.walk.walk` for what may be included twice.

        Arguments:
            texts: only messages that contain one of these texts.
            skip: how many to pass over first.
        """
        server, keys = self._store.server, self._store.ready_keys(queue)
        lengths = answers(server, (("LLEN", key) for key in keys)) if skip else [0] * len(keys)
        for index, step in enumerate(self._store.steps):
            skipped = min(skip, lengths[index])
            skip -= skipped
            for entry in walk(server, keys[: index + 1], texts, skip=skipped):
                yield Ready(queue, step, entry.taken_before, entry.data, entry.is_sure)

    def remove(self, message: Ready) -> bool:
        """Remove a message. Redis looks for it from the end that was nearer. Returns ``False`` if it is not
        ready any more, or has been delivered meanwhile and came back."""
        return any(self.remove_all(message.queue, [message]))

    def remove_all(self, queue: str, messages: Iterable[Ready]) -> Iterator[Ready]:
        """Do the same as :meth:`remove` for *messages* of *queue*, in bounded steps. Yields those that were
        removed."""
        for some in portions(messages, _size, MESSAGES_PER_CALL, BYTES_PER_CALL):
            for step, of_step in groupby(some, attrgetter("step")):
                yield from self._remove(queue, self._store.steps.index(step), list(of_step))

    def _remove(self, queue: str, index: int, messages: Sequence[Ready]) -> Iterator[Ready]:
        server, keys = self._store.server, self._store.ready_keys(queue)
        lengths: list[int] = answers(server, (("LLEN", key) for key in keys[: index + 1]))
        taken_before, length = sum(lengths[:-1]), lengths[-1]

        def distance(message: Ready) -> int:
            """How many messages Redis looks at from the nearer end; negative from the end that is taken."""
            place = message.place - taken_before
            return -max(1, place) if 2 * place < length else max(1, length - place)

        used = (keys[index], self._store.keys(queue).wake)
        for some in portions(
            messages, lambda each: abs(distance(each)), MESSAGES_PER_CALL, SEARCHED_PER_CALL
        ):
            pairs = ((-1 if distance(each) < 0 else 1, each.payload) for each in some)
            reply = REMOVE_READY(server, used, tuple(chain.from_iterable(pairs)))
            yield from (each for each, done in zip(some, reply, strict=True) if done)


def _size(message: Ready) -> int:
    return len(message.payload)
