"""How many bytes of memory Redis takes for a message: its allocator rounds them up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from redis.exceptions import RedisError

from kombu_redisdelay.broker.store import Store

#: With its own allocator, jemalloc, Redis has memory in pieces of certain sizes: four between a power of two
#: and the next, and eight up to *SMALL* (``lg-quantum`` of its build is 3). Other allocators waste little.
JEMALLOC, SMALL, QUANTUM, SIZES_BETWEEN = "jemalloc", 64, 8, 4

#: A piece is filled to this part at least, if it is not small.
LEAST_OF_ALLOCATED = 0.75

#: Redis keeps a list in nodes of this size (``list-max-listpack-size`` is -2), and a larger entry in its own
#: node.
NODE_BYTES = 8192

#: What an entry of a list takes besides its text, and the node itself.
_LIST_ENTRY, _LIST_NODE = 10, 40

#: What a text in a hash takes besides, and what its field and its value take together.
_TEXT, _HASH_ENTRY = 6, 44


@dataclass(frozen=True, slots=True)
class Allocator:
    """The allocator of a server.

    Attributes:
        rounds: whether it is jemalloc.
    """

    rounds: bool = True

    def allocated(self, size: int) -> int:
        """The bytes of the piece for *size* bytes."""
        if not self.rounds:
            return size
        step = QUANTUM if size <= SMALL else (1 << (size - 1).bit_length()) // 2 // SIZES_BETWEEN
        return -(-size // step) * step

    def of_list_entry(self, length: int) -> int:
        """The bytes of an entry with a text of this *length* in a list. If it shares its node with others,
        what the node is rounded up by is not in it (:meth:`of_nodes`)."""
        size = length + _LIST_ENTRY
        return size if size <= NODE_BYTES else self.allocated(size) + _LIST_NODE

    def of_hash_entry(self, *lengths: int) -> int:
        """The bytes of a field and its value, with these *lengths*."""
        return _HASH_ENTRY + sum(self.allocated(length + _TEXT) for length in lengths)

    def of_nodes(self, sizes: Iterable[float]) -> float:
        """How many bytes the nodes of a list take for each byte of entries of these *sizes*, of which none
        has a node of its own; 1 if there are none."""
        nodes: list[float] = []
        room = 0.0
        for size in sizes:
            if size > room:
                nodes.append(0)
                room = NODE_BYTES
            nodes[-1] += size
            room -= size
        filled = sum(nodes)
        return sum(self.allocated(int(each)) for each in nodes) / filled if filled else 1.0


def allocator_of(store: Store) -> Allocator:
    """That of the servers. jemalloc, the usual one, if none of them can be asked."""
    for server in store.server.servers():
        try:
            told = str(server.info("memory").get("mem_allocator", JEMALLOC))
        except (RedisError, OSError):
            continue
        return Allocator(told.startswith(JEMALLOC))
    return Allocator()
