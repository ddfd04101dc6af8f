"""The actions of an operator on ready messages: look at them, remove them, schedule them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.fair_keys import (
    KeyState,
    asking_for_sorted,
    is_fair,
    iter_keys,
    sorted_of,
)
from kombu_redisdelay.broker.members import size_to_move
from kombu_redisdelay.broker.paging import Reply, first_pages, walk
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL, portions
from kombu_redisdelay.broker.server.scripts import (
    CLEAR,
    MOVE_READY,
    ScriptCall,
    try_each,
)
from kombu_redisdelay.broker.server.wire import Argument, Command, answers, checked
from kombu_redisdelay.broker.store import Store

#: Messages that Redis looks at in one script to find those that are to be removed: some milliseconds.
SEARCHED_PER_CALL = 10_000

#: Lists of keys that are begun together.
LISTS_PER_CALL = 50


@dataclass(frozen=True, slots=True)
class Ready:
    """A ready message.

    Attributes:
        step: its priority step.
        position: how many messages of the queue are taken before it.
        is_sure: as :attr:`ListEntry.is_sure <kombu_redisdelay.broker.paging.ListEntry.is_sure>`.
        key: whose turn it takes in a fair queue; ``None`` if it is in the ready list.
        in_list: how many of its list are taken before it, if it has a key. Then the position is a guess, as
            if each key had its turn when the one before has none left.
        is_at_limit: whether its key is paused or at a limit, so that nobody knows when it is taken.
    """

    queue: str
    step: int
    position: int
    payload: bytes
    is_sure: bool
    key: str | None = None
    in_list: int = 0
    is_at_limit: bool = False


class ReadyLists:
    """The ready messages in *store*, queue by queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def counts(self, queues: Sequence[str], *, with_scheduled: bool = False) -> list[int]:
        """How many messages each of *queues* has.

        Arguments:
            with_scheduled: whether scheduled ones count, too.
        """
        store = self._store
        commands: list[Command] = []
        for queue in queues:
            commands += [("LLEN", key) for key in store.ready_keys(queue)]
            if with_scheduled:
                commands.append(("ZCARD", store.keys(queue).schedule))
            commands.append(asking_for_sorted(store, queue))
        replies = iter(answers(store.server, commands))
        counts = []
        for _ in queues:
            in_lists = sum(islice(replies, len(store.steps) + with_scheduled))
            counts.append(in_lists + sum(sorted_of(store, next(replies)).values()))
        return counts

    def iter(
        self,
        queue: str,
        texts: Sequence[str] = (),
        skip: int = 0,
        is_key: Callable[[str], bool] | None = None,
    ) -> Iterator[Ready]:
        """The messages of *queue* in the order in which they are taken, read page by page. See
        :func:`~kombu_redisdelay.broker.paging.walk` for what may be included twice.

        Arguments:
            texts: only messages that contain one of these texts.
            skip: how many to pass over first.
            is_key: of what a fair queue has sorted by key, only messages of the keys for which it is true.
        """
        if is_fair(self._store, queue):
            yield from islice(self._iter_fair(queue, texts, is_key), skip, None)
            return
        server, keys = self._store.server, self._store.ready_keys(queue)
        lengths = answers(server, (("LLEN", key) for key in keys))
        for index, step in enumerate(self._store.steps):
            skipped = min(skip, lengths[index])
            skip -= skipped
            if not lengths[index]:
                continue
            for entry in walk(server, keys[: index + 1], texts, skip=skipped):
                yield Ready(queue, step, entry.taken_before, entry.data, entry.is_sure)

    def _iter_fair(
        self, queue: str, texts: Sequence[str], is_key: Callable[[str], bool] | None
    ) -> Iterator[Ready]:
        """The messages of a fair queue: of each step those of the keys, the one whose turn is next first, and
        then what is not sorted by key."""
        server, keys = self._store.server, self._store.keys(queue)
        states = list(iter_keys(self._store, queue))
        position = 0
        for step in self._store.steps:
            of_step = [state for state in states if step in state.ready]
            of_step.sort(key=lambda state: state.turns.get(step, 0.0))
            for state, list_, first_page in self._begun(of_step, queue, step, texts, is_key):
                for entry in walk(server, [list_], texts, first_page=first_page) if first_page else ():
                    before = position + entry.taken_before
                    yield Ready(
                        queue,
                        step,
                        before,
                        entry.data,
                        entry.is_sure,
                        state.key,
                        entry.taken_before,
                        state.is_at_limit,
                    )
                position += 0 if state.is_at_limit else state.ready[step]
            unsorted = keys.ready_at(step)
            for entry in walk(server, [unsorted], texts):
                yield Ready(queue, step, position + entry.taken_before, entry.data, entry.is_sure)
            position += server.call("LLEN", unsorted)

    def _begun(
        self,
        states: Iterable[KeyState],
        queue: str,
        step: int,
        texts: Sequence[str],
        is_key: Callable[[str], bool] | None,
    ) -> Iterator[tuple[KeyState, str, Reply | None]]:
        """Each of these keys with its list and the first page of it, ``None`` if nothing of it is wanted. A
        round trip for each of 10,000 keys would take too long, so the lists of some are begun together."""
        keys = self._store.keys(queue)
        for some in portions(states, lambda state: state.ready[step], LISTS_PER_CALL, MESSAGES_PER_CALL):
            lists = {state.key: keys.key_list(step, state.key) for state in some}
            wanted = [key for key in lists if is_key is None or is_key(key)]
            pages = first_pages(self._store.server, [lists[key] for key in wanted], texts) if wanted else []
            page_of = dict(zip(wanted, pages, strict=True))
            yield from ((state, lists[state.key], page_of.get(state.key)) for state in some)

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

        def call(of_list: _Search) -> ScriptCall:
            args: list[Argument] = ["remove", of_list.step, self._store.separator]
            for end, each in of_list.messages:
                args += (end, each.payload)
            return MOVE_READY, self._store.keys(queue).around(of_list.list_), args

        return self._run(queue, messages, call)

    def clear(self, queue: str) -> int:
        """Remove all messages of *queue*. Returns how many there were."""
        keys = self._store.ready_keys(queue)
        count = CLEAR(self._store.server, (*keys, self._store.keys(queue).wake), (len(keys), 0, "waiting"))
        return int(count) + self._store.clear_keys(queue)

    def schedule_all(
        self,
        queue: str,
        messages: Iterable[Ready],
        due: Callable[[Ready], tuple[str, float, bool]],
        rewritten: Callable[[Ready], bytes] = attrgetter("payload"),
    ) -> Iterator[Ready]:
        """Move *messages* of *queue* into the schedule, in the same way. Yields those that were ready.

        Arguments:
            due: tells the id of a message, when it is due, in ms since the epoch, and whether it is of a task
                that has published itself again.
            rewritten: tells how a message is written in the schedule.
        """

        def call(of_list: _Search) -> ScriptCall:
            args: list[Argument] = ["schedule", of_list.step, self._store.separator]
            for end, each in of_list.messages:
                text, (id, due_ms, is_continued) = rewritten(each), due(each)
                args += (end, each.payload, "" if text == each.payload else text)
                args += (id, due_ms, int(is_continued))
            return MOVE_READY, self._store.keys(queue).around(of_list.list_), args

        return self._run(queue, messages, call)

    def _run(
        self, queue: str, messages: Iterable[Ready], call: Callable[[_Search], ScriptCall]
    ) -> Iterator[Ready]:
        """Run a script for each list that *messages* are in. A fair queue may have thousands of lists, so
        those of a portion are done in one round trip. Yields the messages for which it was done."""
        for some in portions(messages, _size, MESSAGES_PER_CALL, BYTES_PER_CALL):
            searches = self._searches(queue, some)
            for together in portions(searches, attrgetter("passed"), MESSAGES_PER_CALL, SEARCHED_PER_CALL):
                replies = try_each(self._store.server, list(map(call, together)))
                for of_list, reply in zip(together, replies, strict=True):
                    if not isinstance(reply, ResponseError):
                        yield from (
                            each for (_, each), done in zip(of_list.messages, reply, strict=True) if done
                        )
                list(checked(replies))

    def _searches(self, queue: str, messages: Iterable[Ready]) -> Iterator[_Search]:
        """Split *messages*, a portion, by their lists, and by how long Redis looks for them."""
        keys, lists = self._store.keys(queue), self._store.ready_keys(queue)
        found = []
        for (step, key), of_list in groupby(messages, attrgetter("step", "key")):
            index, some = self._store.steps.index(step), list(of_list)
            if key is None:
                found.append((step, lists[: index + 1], [(each.position, each) for each in some]))
            else:
                found.append((step, [keys.key_list(step, key)], [(each.in_list, each) for each in some]))
        lengths = iter(answers(self._store.server, (("LLEN", key) for _, used, _ in found for key in used)))
        for step, used, positions in found:
            *before, length = islice(lengths, len(used))
            distances = [(_distance(at - sum(before), length), each) for at, each in positions]
            for portion in portions(
                distances, lambda pair: abs(pair[0]), MESSAGES_PER_CALL, SEARCHED_PER_CALL
            ):
                ends = [(-1 if distance < 0 else 1, each) for distance, each in portion]
                yield _Search(step, used[-1], ends, sum(abs(distance) for distance, _ in portion))


@dataclass(frozen=True, slots=True)
class _Search:
    """Messages of one list, for one script.

    Attributes:
        messages: each with the end to look for it from: 1 is where publishers put messages, -1 the other one.
        passed: how many messages Redis looks at to find them, about.
    """

    step: int
    list_: str
    messages: Sequence[tuple[int, Ready]]
    passed: int


def _distance(position: int, length: int) -> int:
    """How many messages of a list Redis looks at from the nearer end to find the one at *position*; negative
    from the end that is taken.

    Arguments:
        length: of the list.
    """
    return -max(1, position) if 2 * position < length else max(1, length - position)


def _size(message: Ready) -> int:
    return size_to_move(message.payload)
