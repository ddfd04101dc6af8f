"""The metrics of a worker for Prometheus: counters and the lateness of messages, by queue.

The metrics are in the default registry of prometheus-client, in the process that consumes. If
prometheus-client is not installed (the extra ``metrics``), the functions do nothing. To publish the numbers,
start ``prometheus_client.start_http_server`` in the worker: see docs/metrics.rst.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

try:
    from prometheus_client import Counter, Histogram
except ImportError:

    def consuming(queue: str) -> None:
        """This process consumes from the queue from now on. The counters of the queue exist, at 0: Prometheus
        sees no increase in the first value of a series."""

    def delivered(queue: str, lateness: float | None) -> None:
        """A message was taken, to be delivered.

        Arguments:
            lateness: seconds since its ``eta``, ``None`` if it has none or was delivered before.
        """

    def recovered(queue: str, messages: int) -> None:
        """Messages were given back, because their consumer is lost."""

    def dead_lettered(queue: str, messages: int) -> None:
        """Messages became dead letters."""

    def failed(queue: str) -> None:
        """A task has failed for good."""

    def not_kept(queue: str) -> None:
        """A task that has failed could not be kept."""

    def lease_lost(queue: str, messages: int) -> None:
        """Unacked messages of this consumer were given to others, because its lease has ended."""

    def unique_conflict(queue: str, outcome: str) -> None:
        """A message met another one with its key, and was dropped, or has replaced it."""

    def forget(queue: str) -> None:
        """The queue was deleted, and may never be used again."""

else:
    #: Seconds. A message on time is a few ms late. A message that is minutes late had no worker.
    LATENESS_BUCKETS = (
        *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
        *(30.0, 60.0, 300.0, 900.0, 3600.0),
    )

    LATENESS = Histogram(
        "redisdelay_lateness_seconds",
        "Time from the eta of a message to its first delivery, by the clock of Redis.",
        ["queue"],
        buckets=LATENESS_BUCKETS,
    )
    DELIVERED = Counter(
        "redisdelay_messages_delivered",
        "Messages that were delivered to this process, redelivered ones included.",
        ["queue"],
    )
    RECOVERED = Counter(
        "redisdelay_messages_recovered",
        "Messages that this process gave back because their consumer was gone.",
        ["queue"],
    )
    DEAD_LETTERED = Counter(
        "redisdelay_messages_dead_lettered",
        "Messages that this process moved to the dead letters.",
        ["queue"],
    )
    FAILED = Counter(
        "redisdelay_tasks_failed",
        "Tasks that have failed for good in this process.",
        ["queue"],
    )
    NOT_KEPT = Counter(
        "redisdelay_tasks_failed_not_kept",
        "Tasks that have failed in this process and could not be kept, because Redis was full.",
        ["queue"],
    )
    LEASE_LOST = Counter(
        "redisdelay_messages_lease_lost",
        "Messages held by this process that others were given, because its lease had ended.",
        ["queue"],
    )

    UNIQUE_CONFLICTS = Counter(
        "redisdelay_unique_conflicts",
        "Messages that this process published while another one had their key. They were dropped, or have "
        "replaced it.",
        ["queue", "outcome"],
    )

    # Twice as fast as asking the metric each time. This matters, because it is done for every message.
    _delivered_of = lru_cache(maxsize=1000)(DELIVERED.labels)
    _lateness_of = lru_cache(maxsize=1000)(LATENESS.labels)

    def consuming(queue: str) -> None:
        for counter in (DELIVERED, RECOVERED, DEAD_LETTERED, FAILED, NOT_KEPT, LEASE_LOST):
            counter.labels(queue)

    def delivered(queue: str, lateness: float | None) -> None:
        _delivered_of(queue).inc()
        if lateness is not None:
            _lateness_of(queue).observe(lateness)

    def recovered(queue: str, messages: int) -> None:
        RECOVERED.labels(queue).inc(messages)

    def dead_lettered(queue: str, messages: int) -> None:
        DEAD_LETTERED.labels(queue).inc(messages)

    def failed(queue: str) -> None:
        FAILED.labels(queue).inc()

    def not_kept(queue: str) -> None:
        NOT_KEPT.labels(queue).inc()

    def lease_lost(queue: str, messages: int) -> None:
        LEASE_LOST.labels(queue).inc(messages)

    def unique_conflict(queue: str, outcome: str) -> None:
        UNIQUE_CONFLICTS.labels(queue, outcome).inc()

    def forget(queue: str) -> None:
        _delivered_of.cache_clear()
        _lateness_of.cache_clear()
        for metric in (LATENESS, DELIVERED, RECOVERED, DEAD_LETTERED, FAILED, NOT_KEPT, LEASE_LOST):
            with suppress(KeyError):
                metric.remove(queue)
        for outcome in ("dropped", "replaced"):
            with suppress(KeyError):
                UNIQUE_CONFLICTS.remove(queue, outcome)
