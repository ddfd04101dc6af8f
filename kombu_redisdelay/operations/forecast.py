"""Foretells when a server is full, if all goes on as in the last hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.times import to_ms
from kombu_redisdelay.operations.history import Counts, QueueHistory, queue_history
from kombu_redisdelay.operations.server_memory import MAXMEMORY, memories
from kombu_redisdelay.operations.stats import read_each
from kombu_redisdelay.public import public

#: A rate is taken over at least so many seconds.
LEAST_SECONDS = 60.0


@public
@dataclass(frozen=True, slots=True)
class ServerFill:
    """How full a server is, and when it is full.

    Attributes:
        server: its address.
        used, limit: bytes that it uses, and may use; 0 if the limit is unknown.
        is_limited: whether the limit is ``maxmemory``, at which it refuses what is published.
        bytes_per_hour: by how much the queues have grown in the last hour, in bytes. Negative if they have
            become smaller. ``None`` if no queue of it has a history.
        full_in: in how many seconds it is full at that rate; ``None`` if it will not be, or that is unknown.
    """

    server: str
    used: int
    limit: int
    is_limited: bool
    bytes_per_hour: float | None
    full_in: float | None


def server_fills(store: Store, means: Mapping[str, float]) -> tuple[list[ServerFill], list[str]]:
    """How full the servers are that can be asked, and the queues or partitions that have no history.

    Arguments:
        means: queue or partition -> bytes that one of its messages takes. Others do not grow.
    """
    histories, _ = read_each(queue_history, store, list(means))
    now_s = store.now_ms() / 1000
    rates: dict[str, float] = {}
    by_server: dict[str, list[str]] = {}
    unknown: list[str] = []
    for history in histories:
        if not history.minutes:
            unknown.append(history.queue)
            continue
        address = store.server.server_of(store.keys(history.queue).schedule).address
        by_server.setdefault(address, []).append(history.queue)
        rates[history.queue] = growth(history, now_s) * means[history.queue]
    fills = []
    for server, memory in memories(store):
        each = [rates[name] for name in by_server.get(server.address, ())]
        rate = sum(each) if each else None
        is_limited = memory.of_what == MAXMEMORY
        full_in = None
        if is_limited and rate is not None and rate > 0:
            full_in = max(0.0, (memory.limit - memory.used) / rate)
        per_hour = None if rate is None else rate * 3600
        fills.append(ServerFill(server.address, memory.used, memory.limit, is_limited, per_hour, full_in))
    return fills, unknown


def growth(history: QueueHistory, now_s: float) -> float:
    """By how many messages a second a queue has grown since the first minute of the last hour in which
    something has happened. What is acked leaves it, but for failed tasks that are kept."""
    counts = reduce(add, (period.counts for period in history.minutes), Counts())
    seconds = now_s - to_ms(history.minutes[0].start) / 1000
    more = counts.published - counts.delivered + counts.failures + counts.failed
    return more / max(LEAST_SECONDS, seconds)
