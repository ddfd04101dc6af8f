"""Foretells when a server is full, if all goes on as in the last hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add, itemgetter

from kombu_redisdelay.broker.message import to_ms
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.history import Counts, QueueHistory, queue_history
from kombu_redisdelay.operations.server_memory import MAXMEMORY, ServerMemory, memories
from kombu_redisdelay.operations.stats import read_some
from kombu_redisdelay.public import public

#: A rate is taken over at least so many seconds, and over so many at most.
LEAST_SECONDS, MOST_SECONDS = 15 * 60.0, 3600.0

#: From this part of the bytes of a server's queues on, it counts that nobody knows how fast some grow.
UNKNOWN_SHARE = 0.1


@public
@dataclass(frozen=True, slots=True)
class ServerFill:
    """How full a server is, and when it is full.

    Attributes:
        server: its address.
        used, limit: bytes that it uses, and may use; *limit* is 0 if it is unknown.
        is_limited: whether the limit is ``maxmemory``.
        of_what: what the limit is, in words.
        policy: its ``maxmemory-policy``.
        bytes_per_hour: by how much the queues have grown in the last hour, in bytes. Negative if they have
            become smaller. ``None`` if that is unknown.
        measured: over how many seconds that was measured: those of the queue with the shortest history;
            ``None`` if it was not.
        full_in: in how many seconds it is full at that rate; ``None`` if it will not be, or that is unknown.
        unknown: queues or partitions with a large part of the bytes that have no history of 15 minutes, the
            largest first. *bytes_per_hour* is without them.
    """

    server: str
    used: int
    limit: int
    is_limited: bool
    of_what: str
    policy: str
    bytes_per_hour: float | None = None
    measured: float | None = None
    full_in: float | None = None
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Growth:
    """By how many messages a second a queue grows, and over how many seconds that was measured."""

    rate: float
    seconds: float


def server_fills(store: Store, by_queue: Mapping[str, tuple[float, int]] | None) -> list[ServerFill]:
    """How full the servers are that can be asked.

    Arguments:
        by_queue: queue or partition -> the bytes that its messages take, and how many there are. Others do
            not grow. ``None``: nothing is foretold.
    """
    if by_queue is None:
        return [_fill(server.address, memory) for server, memory in memories(store)]
    histories = read_some(queue_history, store, list(by_queue))
    now_s = store.now_ms() / 1000
    found = {history.queue: growth(history, now_s) for history in histories}
    by_server: dict[str, list[str]] = {}
    for name in by_queue:
        address = store.server.server_of(store.keys(name).schedule).address
        by_server.setdefault(address, []).append(name)
    fills = []
    for server, memory in memories(store):
        sizes = {name: by_queue[name] for name in by_server.get(server.address, ())}
        fills.append(_foretold(server.address, memory, sizes, found))
    return fills


def _fill(address: str, memory: ServerMemory) -> ServerFill:
    is_limited = memory.of_what == MAXMEMORY
    return ServerFill(address, memory.used, memory.limit, is_limited, memory.of_what, memory.policy)


def _foretold(
    address: str,
    memory: ServerMemory,
    sizes: Mapping[str, tuple[float, int]],
    found: Mapping[str, Growth | None],
) -> ServerFill:
    known: list[tuple[float, float]] = []
    unknown: list[tuple[str, float]] = []
    for name, (size, messages) in sizes.items():
        its = found.get(name)
        if its is None:
            unknown.append((name, size))
        else:
            known.append((its.rate * size / messages, its.seconds))
    unknown.sort(key=itemgetter(1), reverse=True)
    if sum(size for _, size in unknown) < UNKNOWN_SHARE * sum(size for size, _ in sizes.values()):
        unknown = []
    rate = sum(rate for rate, _ in known)
    if not known or (unknown and rate <= 0):
        # It may be filling up by the others.
        return replace(_fill(address, memory), unknown=[name for name, _ in unknown])
    full_in = max(0.0, (memory.limit - memory.used) / rate) if memory.limit and rate > 0 else None
    return replace(
        _fill(address, memory),
        bytes_per_hour=rate * 3600,
        measured=min(seconds for _, seconds in known),
        full_in=full_in,
        unknown=[name for name, _ in unknown],
    )


def growth(history: QueueHistory, now_s: float) -> Growth | None:
    """How fast a queue grows. What is acked leaves it, but for failed tasks that are kept. ``None`` if its
    history is too short."""
    if not history.minutes:
        return None
    counts = reduce(add, (period.counts for period in history.minutes), Counts())
    began_ms = min(to_ms(period.start) for period in (*history.minutes[:1], *history.hours[:1]))
    seconds = min(MOST_SECONDS, now_s - began_ms / 1000)
    if seconds < LEAST_SECONDS:
        return None
    more = counts.published - counts.delivered + counts.failures + counts.failed
    return Growth(more / seconds, seconds)
