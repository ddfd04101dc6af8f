"""The queues of a consumer, with what is sent about all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from kombu_redisdelay.broker.server.wire import PackedKeys
from kombu_redisdelay.broker.store import Store

#: Queues that one script looks at: a millisecond of the server's time at most.
QUEUES_PER_LOOK = 100


class Roster:
    """The *queues*, in this order. It is made once and used for many commands.

    Attributes:
        wake_keys: the key of the wake zset of each queue.
    """

    def __init__(self, store: Store, queues: Sequence[str]) -> None:
        self._store = store
        self.queues = tuple(queues)
        self.wake_keys = PackedKeys(store.keys(queue).wake for queue in queues)
        self._next = 0
        #: From 1, as in Lua.
        self._index = {queue: index for index, queue in enumerate(queues, 1)}

    @cached_property
    def names(self) -> frozenset[str]:
        """The queues without an order."""
        return frozenset(self.queues)

    @cached_property
    def _by_wake_key(self) -> dict[bytes, str]:
        return {key.encode(): queue for key, queue in zip(self.wake_keys, self.queues, strict=True)}

    @cached_property
    def ready_keys(self) -> PackedKeys:
        """Where ready messages of all queues are: their lists, and what says that a fair queue has any."""
        return PackedKeys(
            key
            for queue in self.queues
            for key in (*self._store.ready_keys(queue), self._store.keys(queue).fair)
        )

    @cached_property
    def unknown_keys(self) -> PackedKeys:
        """The key of what waits for a worker that knows its task, of each queue."""
        return PackedKeys(self._store.keys(queue).unknown for queue in self.queues)

    def index(self, queue: str) -> int | None:
        """The index of *queue*, ``None`` if it is another one."""
        return self._index.get(queue)

    def next_slice(self, count: int) -> Sequence[str]:
        """The next *count* queues, beginning again at the end."""
        first, self._next = self._next, self._next + count
        if self._next >= len(self.queues):
            self._next = 0
        return self.queues[first : first + count]

    def indices(self, queues: Sequence[str]) -> str:
        """The indices of *queues*, separated by spaces."""
        return " ".join([str(self._index[queue]) for queue in queues])

    def at(self, indices: bytes) -> list[str]:
        """The queues at these *indices*."""
        return [self.queues[int(index) - 1] for index in indices.split()]

    def pairs(self, numbers: bytes) -> Iterator[tuple[str, int]]:
        """Pairs of a queue and a number, from pairs of an index and a number."""
        each = map(int, numbers.split())
        return ((self.queues[index - 1], number) for index, number in zip(each, each, strict=True))

    def due(self, numbers: bytes) -> dict[str, float]:
        """Queue -> seconds, from pairs of an index and microseconds."""
        return {queue: microseconds / 1_000_000 for queue, microseconds in self.pairs(numbers)}

    def woken(self, wake_key: bytes) -> str:
        """The queue that has this wake zset."""
        return self._by_wake_key[wake_key]

    @cached_property
    def parts(self) -> Sequence[Roster]:
        """The same queues, :data:`QUEUES_PER_LOOK` at a time."""
        if len(self.queues) <= QUEUES_PER_LOOK:
            return [self]
        starts = range(0, len(self.queues), QUEUES_PER_LOOK)
        return [Roster(self._store, self.queues[start : start + QUEUES_PER_LOOK]) for start in starts]
