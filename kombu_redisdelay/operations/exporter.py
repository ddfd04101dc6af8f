"""The stats of the queues as Prometheus gauges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from kombu_redisdelay.broker.printable import printable
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.stats import QueueStats, queue_stats

logger = logging.getLogger(__name__)

#: Name of a metric -> its description, and how to get its value from the stats of a queue.
_GAUGES: dict[str, tuple[str, Callable[[QueueStats], float]]] = {
    "redisdelay_queue_ready_messages": ("Messages that a worker may take now.", lambda q: q.ready),
    "redisdelay_queue_scheduled_messages": ("Messages that wait for their time.", lambda q: q.scheduled),
    "redisdelay_queue_overdue_messages": (
        "Scheduled messages whose time has come, and that nobody has moved to the ready list yet.",
        lambda q: q.overdue,
    ),
    "redisdelay_queue_unacked_messages": ("Messages that consumers hold.", lambda q: q.unacked),
    "redisdelay_queue_dead_messages": ("Dead letters.", lambda q: q.dead),
    "redisdelay_queue_consumers": ("Consumers whose lease lasts.", lambda q: q.consumers),
    "redisdelay_queue_oldest_lateness_seconds": (
        "For how long the first scheduled message has been due, 0 if it is not yet.",
        lambda q: q.lateness,
    ),
    "redisdelay_queue_paused": ("1 if the queue is paused.", lambda q: q.control.is_paused),
    "redisdelay_queue_concurrency_limit": (
        "How many messages all workers may hold together, 0 for any number.",
        lambda q: q.control.concurrency or 0,
    ),
    "redisdelay_queue_rate_limit_per_second": (
        "How many messages all workers may take in a second, 0 for any number.",
        lambda q: q.control.per_second or 0,
    ),
    "redisdelay_queue_next_due_timestamp_seconds": (
        "When the first scheduled message is due, 0 if nothing is scheduled.",
        lambda q: q.next_due.timestamp() if q.next_due else 0,
    ),
}

#: The same for counters.
_COUNTERS: dict[str, tuple[str, Callable[[QueueStats], float]]] = {
    "redisdelay_queue_held_back": (
        "Takes that got less than was ready, because the queue is paused or limited.",
        lambda q: q.control.held_back,
    ),
}


class QueueCollector(Collector):
    """Collects the stats of the queues. It reads them from Redis whenever they are collected.

    Arguments:
        store: the queues in Redis.
        find_queues: returns the names of the queues; called for each collection.
    """

    def __init__(self, store: Store, find_queues: Callable[[], Iterable[str]]) -> None:
        self._store = store
        self._find_queues = find_queues

    def collect(self) -> Iterator[Metric]:
        try:
            stats = queue_stats(self._store, self._find_queues())
        except (RedisError, OSError) as exc:
            logger.error("Cannot read the queues: %s", printable(str(exc)))
            stats = []
            up = 0
        else:
            up = 1
        yield GaugeMetricFamily("redisdelay_up", "Whether Redis answered.", value=up)
        for name, (documentation, value) in _GAUGES.items():
            family = GaugeMetricFamily(name, documentation, labels=["queue"])
            for queue in stats:
                family.add_metric([printable(queue.queue)], value(queue))
            yield family
        for name, (documentation, value) in _COUNTERS.items():
            counter = CounterMetricFamily(name, documentation, labels=["queue"])
            for queue in stats:
                counter.add_metric([printable(queue.queue)], value(queue))
            yield counter
