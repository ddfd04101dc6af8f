"""Queues that are larger than a node of a cluster: each is spread over several queues, its partitions.

The first partition has the name of the queue, the others have :data:`MARK` and a number appended. So each has
keys of its own, and is in a slot of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

#: Between the name of a queue and the number of a partition.
MARK = "#"


class Partitions:
    """The queues that have partitions.

    Arguments:
        counts: queue -> how many partitions it has.

    Attributes:
        spread: the queues that have partitions.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._names = {
            queue: (queue, *(f"{queue}{MARK}{number}" for number in range(1, count)))
            for queue, count in counts.items()
        }
        self.spread: Sequence[str] = tuple(counts)
        self._queues = {name: queue for queue, names in self._names.items() for name in names}

    def names(self, queue: str) -> Sequence[str]:
        """The partitions of *queue*: itself, if it has no others."""
        return self._names.get(queue) or (queue,)

    def all_names(self, queues: Iterable[str]) -> list[str]:
        """The partitions of all *queues*, each once."""
        return list(dict.fromkeys(name for queue in queues for name in self.names(queue)))

    def pick(self, queue: str, message_id: str) -> str:
        """The partition of *queue* for a message: always the same one for the same id."""
        names = self._names.get(queue)
        # Not hash(), which differs from process to process.
        return queue if names is None else names[crc32(message_id.encode()) % len(names)]

    def queue_of(self, name: str) -> str:
        """The queue that has this partition."""
        return self._queues.get(name, name)


def equal_shares(number: int, count: int) -> list[int]:
    """What each of *count* partitions gets of *number*."""
    whole, rest = divmod(number, count)
    return [whole + (index < rest) for index in range(count)]


def taken(name: str, queue: str) -> str:
    """Why a queue cannot be named *name*, if this is the name of a partition of *queue*."""
    return (
        f"a queue cannot be named {name!r}, because this is a partition of the queue {queue!r} (transport "
        "option 'partitions'): give it another name"
    )
