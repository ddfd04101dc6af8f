"""The stats of the queues as Prometheus gauges, and the totals of their histories as counters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from kombu_redisdelay.broker.server.server import evicted_by
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.fairness import Fairness, KeyFigures, key_figures
from kombu_redisdelay.operations.history import Counts, QueueHistory, queue_history
from kombu_redisdelay.operations.limits import LIMIT_KINDS, LimitKind
from kombu_redisdelay.operations.queue_bytes import queue_bytes
from kombu_redisdelay.operations.server_memory import memories
from kombu_redisdelay.operations.states import STATES
from kombu_redisdelay.operations.stats import QueueStats, queue_stats, read_each
from kombu_redisdelay.operations.viewers import Cached, why
from kombu_redisdelay.words import printable

logger = logging.getLogger(__name__)

#: The bytes of queues are kept for so many seconds at least, and for so many times as long as it took to read
#: them. They are read of so many queues, those with the most messages.
BYTES_FOR, TIMES_AS_LONG = 60.0, 100.0
MOST_QUEUES = 500


def _limit(kind: LimitKind) -> Callable[[QueueStats], float]:
    return lambda queue: kind.value(queue.limits) or 0


#: Name of a metric -> its description, and how to get its value from the stats of a queue.
_GAUGES: dict[str, tuple[str, Callable[[QueueStats], float | None]]] = {
    "redisdelay_queue_overdue_messages": (
        "Scheduled messages whose time has come, and that nobody has moved to the ready list yet.",
        lambda q: q.overdue,
    ),
    "redisdelay_queue_blocked_messages": (
        "Scheduled messages that wait for their unique key.",
        lambda q: q.blocked,
    ),
    "redisdelay_queue_consumers": ("Consumers whose lease lasts.", lambda q: q.consumers),
    "redisdelay_queue_oldest_lateness_seconds": (
        "For how long the first scheduled message has been due, 0 if it is not yet.",
        lambda q: q.lateness,
    ),
    "redisdelay_queue_paused": ("1 if the queue is paused.", lambda q: q.limits.is_paused),
    **{kind.metric: (kind.documentation, _limit(kind)) for kind in LIMIT_KINDS},
    "redisdelay_queue_bound_messages": (
        "How many messages may wait before new work is refused. Missing for any number.",
        lambda q: q.bound,
    ),
    "redisdelay_queue_bound_ratio": (
        "Which part of that number waits, ready and scheduled. Missing for any number.",
        lambda q: q.bound_share,
    ),
    "redisdelay_queue_next_due_timestamp_seconds": (
        "When the first scheduled message is due, 0 if nothing is scheduled.",
        lambda q: q.next_due.timestamp() if q.next_due else 0,
    ),
    "redisdelay_queue_waiting_seconds": (
        "For how long the next ready message has waited, 0 if there is none. Missing if that is unknown.",
        lambda q: q.waiting,
    ),
}

#: The same of fair queues, from what they say of their keys.
_OF_KEYS: dict[str, tuple[str, Callable[[Fairness, KeyFigures], float | None]]] = {
    "redisdelay_queue_keys": (
        "Keys of a fair queue that wait for their turn or at a limit.",
        lambda fairness, figures: fairness.keys,
    ),
    "redisdelay_queue_keys_at_limit": (
        "Keys of a fair queue that wait because of their limits, or are paused.",
        lambda fairness, figures: fairness.keys_at_limit,
    ),
    "redisdelay_queue_greatest_key_ratio": (
        "Which part of the ready messages of a fair queue is of the key with the most, 0 if there are none.",
        lambda fairness, figures: figures.greatest_share,
    ),
    "redisdelay_queue_longest_key_waiting_seconds": (
        "For how long the ready message of a fair queue has waited that has waited longest.",
        lambda fairness, figures: figures.longest_wait,
    ),
    "redisdelay_queue_quiet_keys_waiting_seconds": (
        "For how long the oldest ready message of a key has waited, in 99 of 100 keys with few messages.",
        lambda fairness, figures: figures.quiet_wait,
    ),
}

#: The same for the totals of its history.
_COUNTERS: dict[str, tuple[str, Callable[[Counts], int]]] = {
    "redisdelay_queue_published": ("Messages that were published.", lambda c: c.published),
    "redisdelay_queue_delivered": (
        "Messages that were delivered, redelivered ones included.",
        lambda c: c.delivered,
    ),
    "redisdelay_queue_failures": ("Deliveries that have failed.", lambda c: c.failures),
    "redisdelay_queue_dead_lettered": ("Messages that became dead letters.", lambda c: c.dead),
    "redisdelay_queue_failed": ("Tasks that have failed for good.", lambda c: c.failed),
    "redisdelay_queue_failed_dropped": (
        "Failed tasks that were dropped because the queue keeps no more of them, or no more bytes.",
        lambda c: c.failed_dropped,
    ),
    "redisdelay_queue_returned": (
        "Tasks that are known to have returned, and whose result was lost, or what follows was not sent, or "
        "whose hook has raised an error.",
        lambda c: c.returned,
    ),
    "redisdelay_queue_continuations_lost": (
        "Of these, the ones of which a linked task, the rest of a chain or the body of a chord was not sent.",
        lambda c: c.continuations,
    ),
    "redisdelay_queue_dropped": (
        "Messages that were not published, because another one held their unique key.",
        lambda c: c.dropped,
    ),
    "redisdelay_queue_replaced": (
        "Messages that were published in place of one that held their unique key.",
        lambda c: c.replaced,
    ),
}


def _gauge(name: str, documentation: str, numbers: Iterable[tuple[str, float | None]]) -> Metric:
    """A gauge of queues. Those whose number is unknown are missing."""
    family = GaugeMetricFamily(name, documentation, labels=["queue"])
    for queue, number in numbers:
        if number is not None:
            family.add_metric([printable(queue)], number)
    return family


class QueueCollector(Collector):
    """Collects the stats of the queues and the totals of their histories. It reads them from Redis whenever
    they are collected.

    Arguments:
        store: the queues in Redis.
        find_queues: returns the names of the queues; called for each collection.
    """

    def __init__(self, store: Store, find_queues: Callable[[], Iterable[str]]) -> None:
        self._store = store
        self._find_queues = find_queues
        self._largest: Sequence[str] = ()
        self._bytes: Cached[list[tuple[str, str, int]]] = Cached(
            lambda: _bytes(store, self._largest),
            lambda _, took: max(BYTES_FOR, TIMES_AS_LONG * took),
        )

    def collect(self) -> Iterator[Metric]:
        try:
            queues = list(self._find_queues())
            found, refused = read_each(_read, self._store, queues)
        except (RedisError, OSError) as exc:
            logger.error("Cannot read the queues: %s", why(exc))
            found, refused, up = [], {}, 0
        else:
            up = 1
        for name, error in refused.items():
            logger.error("Cannot read queue %r: %s", name, why(error))
        stats, histories = [each for each, _, _ in found], [each for _, each, _ in found]
        yield GaugeMetricFamily("redisdelay_up", "Whether Redis answered.", value=up)
        messages = GaugeMetricFamily(
            "redisdelay_queue_messages", "Messages in each state.", labels=["queue", "state"]
        )
        for queue in stats:
            for state in STATES.values():
                if not state.is_past:
                    messages.add_metric([printable(queue.queue), state.name], getattr(queue, state.name))
        yield messages
        yield from self._queue_bytes(stats)
        for name, (documentation, value) in _GAUGES.items():
            yield _gauge(name, documentation, ((queue.queue, value(queue)) for queue in stats))
        for name, (documentation, of_keys) in _OF_KEYS.items():
            numbers = (
                (queue.queue, of_keys(queue.fairness, figures))
                for queue, _, figures in found
                if queue.fairness is not None and figures is not None
            )
            yield _gauge(name, documentation, numbers)
        for name, (documentation, total) in _COUNTERS.items():
            counter = CounterMetricFamily(name, documentation, labels=["queue"])
            for history in histories:
                counter.add_metric([printable(history.queue)], total(history.totals))
            yield counter
        throttled = CounterMetricFamily(
            "redisdelay_queue_throttled",
            "Takes that got less than was ready, because the queue is paused or limited.",
            labels=["queue"],
        )
        for queue in stats:
            throttled.add_metric([printable(queue.queue)], queue.limits.throttled)
        yield throttled
        yield from self._memories() if up else ()

    def _queue_bytes(self, stats: Sequence[QueueStats]) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "redisdelay_queue_bytes",
            "Bytes of Redis of the messages in each state, read once a minute at most. Missing if unknown.",
            labels=["queue", "state"],
        )
        largest = sorted(stats, key=lambda queue: -queue.messages)[:MOST_QUEUES]
        self._largest = [queue.queue for queue in largest]
        try:
            found = self._bytes.get().value if stats else []
        except (RedisError, OSError) as exc:
            logger.error("Cannot read the bytes of the queues: %s", why(exc))
            found = []
        for queue, state, size in found:
            family.add_metric([printable(queue), state], size)
        yield family

    def _memories(self) -> Iterator[Metric]:
        used = GaugeMetricFamily(
            "redisdelay_redis_memory_used_bytes", "Bytes that Redis uses.", labels=["server"]
        )
        limit = GaugeMetricFamily(
            "redisdelay_redis_memory_limit_bytes",
            "Bytes that Redis may use: maxmemory, or what its container or machine has. Missing if unknown.",
            labels=["server"],
        )
        evicts = GaugeMetricFamily(
            "redisdelay_redis_evicts",
            "1 if Redis may throw messages away when it is full.",
            labels=["server"],
        )
        for server, memory in memories(self._store):
            address = [printable(server.address)]
            used.add_metric(address, memory.used)
            evicts.add_metric(address, bool(evicted_by(memory.policy)))
            if memory.limit:
                limit.add_metric(address, memory.limit)
        yield from (used, limit, evicts)


def _read(store: Store, queues: Sequence[str]) -> list[tuple[QueueStats, QueueHistory, KeyFigures | None]]:
    stats = queue_stats(store, queues)
    figures = [key_figures(store, each.queue) if each.fairness else None for each in stats]
    return list(zip(stats, queue_history(store, queues), figures, strict=True))


def _bytes(store: Store, queues: Sequence[str]) -> list[tuple[str, str, int]]:
    """The bytes of *queues* by state, where they can be read."""
    queue_of = {name: queue for queue in queues for name in store.partitions.names(queue)}
    found, refused = read_each(queue_bytes, store, list(queue_of))
    unreadable = {queue_of[name] for name in refused}
    readable = [queue for queue in queues if queue not in unreadable]
    states = [name for name, state in STATES.items() if not state.is_past]
    sizes: dict[tuple[str, str], int | None] = {(queue, state): 0 for queue in readable for state in states}
    for part in found:
        key = queue_of[part.name], part.state
        if key in sizes:
            so_far = sizes[key]
            sizes[key] = None if so_far is None or part.bytes is None else so_far + part.bytes
    return [(queue, state, size) for (queue, state), size in sizes.items() if size is not None]
