"""Messages where no worker of ours looks.

Workers of kombu's own ``redis://`` keep in one hash what they had taken and not acked. And a producer with
another separator or other priority steps than the workers, the transport options ``sep`` and
``priority_steps``, fills lists that they do not read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.members import size_to_move
from kombu_redisdelay.broker.portions import (
    BYTES_PER_CALL,
    MESSAGES_PER_CALL,
    NAME_BYTES_PER_CALL,
    next_page,
    portions,
)
from kombu_redisdelay.broker.server.scripts import ADOPT, MOVE_READY
from kombu_redisdelay.broker.server.wire import Argument
from kombu_redisdelay.broker.store import Store

#: Messages that are read first. How many are read next depends on their size.
FIRST_PAGE = 10

#: What :meth:`Leftovers.move` says of a message.
ABSENT, MOVED, REFUSED = 0, 1, -1

#: kombu's priorities go up to 9, so no message is in a list of a larger step.
STEPS = range(1, 10)

#: A separator and a step.
End = tuple[str, int]

#: Entries that are no messages, after which a list is left alone. Redis looks past them for each message.
MOST_UNUSABLE = 100


@dataclass(frozen=True, slots=True)
class Leftover:
    """An entry of the hash of ``redis://``.

    Attributes:
        tag: its field, the delivery tag of a message.
        data: its value.
    """

    tag: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a message belongs.

    Attributes:
        queues: the queues that get it.
        step: its priority step.
        payload: the message itself.
        id: the id to schedule it under.
        due_ms: when it is due, ms since the epoch; ``None`` if it is to be taken next.
        is_continued: whether it is of a task that has published itself again.
    """

    queues: Sequence[str]
    step: int
    payload: bytes
    id: str
    due_ms: float | None
    is_continued: bool = False


class Leftovers:
    """The messages in the unacked hash of ``redis://``.

    Arguments:
        store: the queues that they go to. They are on one server with the hash, not on a cluster.
        unacked_key: key of the hash.
        index_key: key of a zset: delivery tag -> when the message was taken, seconds since the epoch.
    """

    def __init__(self, store: Store, unacked_key: str, index_key: str) -> None:
        self._store = store
        self._unacked_key = unacked_key
        self._index_key = index_key

    def check(self) -> None:
        """
        Raises:
            ResponseError: one of the two keys has a wrong type.
        """
        for key, expected in ((self._unacked_key, "hash"), (self._index_key, "zset")):
            kind = self._store.server.call("TYPE", key).decode()
            if kind not in ("none", expected):
                raise ResponseError(f"WRONGTYPE: key {key!r} holds a {kind}, where a {expected} belongs")

    def count(self) -> int:
        count: int = self._store.server.call("HLEN", self._unacked_key)
        return count

    def iter(self) -> Iterator[Leftover]:
        """The messages in no order, read page by page. A message may come twice if others are added or
        removed meanwhile; one that stays comes at least once."""
        cursor, size = b"0", FIRST_PAGE
        while True:
            cursor, reply = self._store.server.call("HSCAN", self._unacked_key, cursor, "COUNT", size)
            found = list(zip(reply[::2], reply[1::2], strict=True))
            yield from (Leftover(tag, data) for tag, data in found)
            if cursor == b"0":
                return
            # A small hash comes as a whole, whatever its size says.
            size = next_page(size, sum(len(data) for _, data in found))

    def move(
        self, moves: Iterable[tuple[Leftover, Destination]]
    ) -> Iterator[tuple[Leftover, Destination, int]]:
        """Move messages to their destinations, in portions. Yields what became of each: :data:`MOVED`,
        :data:`ABSENT` if it was not there any more, or :data:`REFUSED` if a key of its queue has a wrong
        type."""
        for some in portions(moves, _move_size, MESSAGES_PER_CALL, BYTES_PER_CALL):
            queues = list(dict.fromkeys(queue for _, where in some for queue in where.queues))
            self._store.remember(*queues)
            numbers = {queue: str(number) for number, queue in enumerate(queues, 1)}
            used = [self._unacked_key, self._index_key]
            for queue in queues:
                keys = self._store.keys(queue)
                used += (keys.ready, keys.wake, *keys.scheduling)
            args: list[Argument] = [self._store.separator]
            for leftover, where in some:
                args += (
                    leftover.tag,
                    leftover.data,
                    b"%d:%b" % (where.step, where.payload),
                    where.id,
                    "" if where.due_ms is None else where.due_ms,
                    int(where.is_continued),
                    " ".join(numbers[queue] for queue in where.queues),
                )
            reply = ADOPT(self._store.server, used, args)
            yield from ((*move, done) for move, done in zip(some, reply, strict=True))


@dataclass(frozen=True, slots=True)
class Stranded:
    """A list of ready messages where no worker with the options of the store looks.

    Attributes:
        queue: whose messages they are.
        key: of the list.
        separator: between the name of the queue and the step.
        messages: how many there are.
    """

    queue: str
    key: str
    separator: str
    step: int
    messages: int


@dataclass(frozen=True, slots=True)
class Destined:
    """What is known of a message that is moved.

    Attributes:
        id: the id to schedule it under.
        due_ms: when it is due, ms since the epoch; ``None`` if it is ready.
    """

    id: str
    due_ms: float | None


class StrandedLists:
    """The stranded messages of queues.

    Arguments:
        store: the queues, with the options that the workers have.
        destined: what is known of a message; ``None`` if it is none.
    """

    def __init__(self, store: Store, destined: Callable[[bytes], Destined | None]) -> None:
        self._store = store
        self._destined = destined

    def find(
        self, queues: Sequence[str], separators: Sequence[str], known: Collection[str]
    ) -> Iterator[Stranded]:
        """The stranded lists of *queues* that have messages. What this user may not read is left out, and so
        is a list whose ends are no messages: another program has it.

        Arguments:
            separators: those that producers may have used.
            known: the names of all queues. A queue may have the name of a list of another one.
        """
        ends = [(separator, step) for separator in separators for step in STEPS]
        looked_at = {(self._store.separator, step) for step in self._store.steps}
        ends = [end for end in ends if end not in looked_at]
        taken = {self._store.keys(queue).ready for queue in known}
        candidates = ((queue, self._candidates(queue, ends, taken)) for queue in queues)
        for some in portions(candidates, _size, MESSAGES_PER_CALL, NAME_BYTES_PER_CALL):
            exist = self._store.server.call_all(*(("EXISTS", *lists) for _, lists in some))
            for (queue, lists), count in zip(some, exist, strict=True):
                if count and not isinstance(count, ResponseError):
                    yield from self._filled(queue, lists)

    def _candidates(self, queue: str, ends: Iterable[End], taken: Collection[str]) -> dict[str, End]:
        """The lists that may be there."""
        name = self._store.keys(queue).ready
        lists = {f"{name}{separator}{step}": (separator, step) for separator, step in ends}
        return {key: end for key, end in lists.items() if key not in taken}

    def _filled(self, queue: str, lists: Mapping[str, End]) -> Iterator[Stranded]:
        for key, (separator, step) in lists.items():
            length, *ends = self._store.server.call_all(
                ("LLEN", key), ("LINDEX", key, -1), ("LINDEX", key, 0)
            )
            if isinstance(length, int) and length and all(map(self._is_message, ends)):
                yield Stranded(queue, key, separator, step, length)

    def _is_message(self, entry: object) -> bool:
        return isinstance(entry, bytes) and self._destined(entry) is not None

    def move(self, stranded: Stranded) -> Iterator[bool]:
        """Move the messages of a list to the ready list of step 0, where workers look whatever their options
        are, in bounded steps and in their order. Those that are due later go into the schedule. Yields, for
        each entry, whether it was moved: no, if it is no message."""
        server, stay, size = self._store.server, 0, FIRST_PAGE
        while stay < MOST_UNUSABLE:
            # The end that is taken from is the right one.
            page = server.call("LRANGE", stranded.key, -stay - size, -stay - 1)[::-1]
            if not page:
                return
            size = next_page(size, sum(map(len, page)))
            destined = [(entry, self._destined(entry)) for entry in page]
            usable = [(entry, each) for entry, each in destined if each is not None]
            stay += len(page) - len(usable)
            yield from (False for _ in range(len(page) - len(usable)))
            for some in portions(usable, lambda pair: len(pair[0]), MESSAGES_PER_CALL, BYTES_PER_CALL):
                yield from (True for moved in self._bring_back(stranded, some) if moved)

    def _bring_back(self, stranded: Stranded, some: Sequence[tuple[bytes, Destined]]) -> Sequence[int]:
        # From the right end, to step 0.
        args: list[Argument] = ["bring back", 0, self._store.separator]
        for entry, each in some:
            args += (-1, entry, "", each.id, "" if each.due_ms is None else each.due_ms, 0)
        keys = self._store.keys(stranded.queue).around(stranded.key)
        moved: Sequence[int] = MOVE_READY(self._store.server, keys, args)
        return moved


def _move_size(move: tuple[Leftover, Destination]) -> int:
    leftover, where = move
    return len(leftover.data) + size_to_move(where.payload)


def _size(candidates: tuple[str, Mapping[str, End]]) -> int:
    _, lists = candidates
    return sum(map(len, lists))
