"""What workers of kombu's own ``redis://`` had taken and not acked: they keep it in one hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL, next_page, portions
from kombu_redisdelay.broker.server.scripts import ADOPT
from kombu_redisdelay.broker.server.wire import Argument
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unique import size_with_key

#: Messages that are read first. How many are read next depends on their size.
FIRST_PAGE = 10

#: What :meth:`Leftovers.move` says of a message.
ABSENT, MOVED, REFUSED = 0, 1, -1


@dataclass(frozen=True, slots=True)
class Leftover:
    """An entry of the hash.

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
            found = _pairs(reply)
            yield from (Leftover(tag, data) for tag, data in found)
            if cursor in (b"0", 0):
                return
            # A small hash comes as a whole, whatever its size says.
            size = next_page(size, sum(len(data) for _, data in found))

    def move(
        self, moves: Iterable[tuple[Leftover, Destination]]
    ) -> Iterator[tuple[Leftover, Destination, int]]:
        """Move messages to their destinations, in portions. Yields what became of each: :data:`MOVED`,
        :data:`ABSENT` if it was not there any more, or :data:`REFUSED` if a key of its queue has a wrong
        type."""
        for some in portions(moves, _size, MESSAGES_PER_CALL, BYTES_PER_CALL):
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


def _pairs(reply: Any) -> list[tuple[bytes, bytes]]:
    # redis-py makes a dictionary of it.
    if isinstance(reply, dict):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))


def _size(move: tuple[Leftover, Destination]) -> int:
    leftover, where = move
    return len(leftover.data) + size_with_key(where.payload)
