"""The metrics of a worker for Prometheus: counters and the lateness of messages, by queue; how tasks end; the
places of its pool.

The metrics are in the default registry of prometheus-client, in the process that consumes. If
prometheus-client is not installed (the extra ``metrics``), the functions do nothing. To publish the numbers,
start ``prometheus_client.start_http_server`` in the worker: see docs/metrics.rst.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

try:
    from prometheus_client import Counter, Gauge, Histogram
except ImportError:
    IS_INSTALLED = False

    def consuming(queue: str) -> None:
        """This process consumes from the queue from now on. The counters of the queue exist, at 0: Prometheus
        sees no increase in the first value of a series."""

    def delivered(queue: str, messages: int) -> None:
        """Messages were taken, to be delivered."""

    def late(queue: str, lateness: float) -> None:
        """A scheduled message was taken for the first time, this number of seconds after its ``eta``."""

    def recovered(queue: str, messages: int) -> None:
        """Messages were given back, because their consumer is lost."""

    def dead_lettered(queue: str, messages: int) -> None:
        """Messages became dead letters."""

    def failed(queue: str) -> None:
        """A task has failed for good."""

    def returned(queue: str) -> None:
        """A task has returned, and could not be ended."""

    def not_kept(queue: str) -> None:
        """A task that has failed, or that has returned and could not be ended, could not be kept."""

    def task_ended(task: str, outcome: str, error: str, waited: float | None, ran: float | None) -> None:
        """A task has ended.

        Arguments:
            error: name of the class of the exception, if it has failed.
            waited: seconds for which it was ready before it began, ``None`` if that is unknown.
            ran: seconds for which it ran, ``None`` if it did not.
        """

    def finished_not_kept(queue: str, tasks: int) -> None:
        """Lines about finished tasks could not be kept."""

    def watch_pool(busy: Callable[[], float], free: Callable[[], float]) -> None:
        """This process has a pool with places. The functions count those that have a task, and the others."""

    def lease_lost(queue: str, messages: int) -> None:
        """Unacked messages of this consumer were given to others, because its lease has ended."""

    def unique_conflict(queue: str, outcome: str) -> None:
        """A message met another one with its key, and was dropped, or has replaced it."""

    def refused(reason: str, is_refused: bool) -> None:
        """A server refuses for a *reason*, a row of :mod:`kombu_redisdelay.refusals`, and this process waits;
        or that is over."""

    def forget(queue: str) -> None:
        """The queue was deleted, and may never be used again."""

else:
    IS_INSTALLED = True

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
    RETURNED = Counter(
        "redisdelay_tasks_returned",
        "Tasks that have returned in this process, and whose result was lost, or what follows was not sent, "
        "or whose hook has raised an error.",
        ["queue"],
    )
    NOT_KEPT = Counter(
        "redisdelay_tasks_failed_not_kept",
        "Tasks that have failed in this process, or lost their results, and could not be kept, because Redis "
        "was full.",
        ["queue"],
    )
    FINISHED_NOT_KEPT = Counter(
        "redisdelay_tasks_finished_not_kept",
        "Finished tasks of this process of which no line could be kept.",
        ["queue"],
    )
    LEASE_LOST = Counter(
        "redisdelay_messages_lease_lost",
        "Messages held by this process that others were given, because its lease had ended.",
        ["queue"],
    )

    #: The counters of one queue.
    OF_QUEUE = (
        *(DELIVERED, RECOVERED, DEAD_LETTERED, FAILED, RETURNED, NOT_KEPT, FINISHED_NOT_KEPT),
        LEASE_LOST,
    )

    UNIQUE_CONFLICTS = Counter(
        "redisdelay_unique_conflicts",
        "Messages that this process published while another one had their key. They were dropped, or have "
        "replaced it.",
        ["queue", "outcome"],
    )

    #: Seconds.
    TASK_BUCKETS = (
        *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
        *(30.0, 60.0, 300.0, 900.0, 3600.0),
    )

    #: So many tasks have labels of their own, and so many errors; of all further ones, it is "other". The
    #: metrics of a program with very many would fill a Prometheus.
    MOST_TASKS, MOST_ERRORS = 200, 200
    OTHER = "other"

    TASKS_ENDED = Counter(
        "redisdelay_tasks_ended", "Tasks that have ended in this process.", ["task", "outcome"]
    )
    TASK_ERRORS = Counter(
        "redisdelay_task_errors",
        "Tasks that have failed for good in this process, by the class of their exception.",
        ["task", "error"],
    )
    TASK_RUN = Histogram(
        "redisdelay_task_run_seconds", "For how long tasks ran.", ["task"], buckets=TASK_BUCKETS
    )
    TASK_WAIT = Histogram(
        "redisdelay_task_wait_seconds",
        "For how long tasks were ready before they ran, by the clock of Redis.",
        ["task"],
        buckets=TASK_BUCKETS,
    )
    POOL = Gauge("redisdelay_pool_places", "Places of the pool of this worker.", ["state"])

    REFUSED = Gauge(
        "redisdelay_worker_refused",
        "1 while Redis refuses this worker for the reason, and it waits.",
        ["reason"],
    )

    # Twice as fast as asking the metric each time. This matters, because it is done for every message.
    _delivered_of = lru_cache(maxsize=1000)(DELIVERED.labels)
    _lateness_of = lru_cache(maxsize=1000)(LATENESS.labels)

    def consuming(queue: str) -> None:
        for counter in OF_QUEUE:
            counter.labels(queue)

    def delivered(queue: str, messages: int) -> None:
        _delivered_of(queue).inc(messages)

    def late(queue: str, lateness: float) -> None:
        _lateness_of(queue).observe(lateness)

    def recovered(queue: str, messages: int) -> None:
        RECOVERED.labels(queue).inc(messages)

    def dead_lettered(queue: str, messages: int) -> None:
        DEAD_LETTERED.labels(queue).inc(messages)

    def failed(queue: str) -> None:
        FAILED.labels(queue).inc()

    def returned(queue: str) -> None:
        RETURNED.labels(queue).inc()

    def not_kept(queue: str) -> None:
        NOT_KEPT.labels(queue).inc()

    class _OfTask:
        """The metrics of one task."""

        def __init__(self, task: str) -> None:
            self.task = task
            self.ran, self.waited = TASK_RUN.labels(task).observe, TASK_WAIT.labels(task).observe
            self.outcomes: dict[str, Callable[[], None]] = {}

        def counter(self, outcome: str) -> Callable[[], None]:
            self.outcomes[outcome] = count = TASKS_ENDED.labels(self.task, outcome).inc
            return count

    _tasks: dict[str, _OfTask] = {}
    _errors: set[tuple[str, str]] = set()

    def task_ended(task: str, outcome: str, error: str, waited: float | None, ran: float | None) -> None:
        its = _tasks.get(task)
        if its is None:
            label = task if len(_tasks) < MOST_TASKS else OTHER
            its = _tasks.get(label) or _tasks.setdefault(label, _OfTask(label))
        (its.outcomes.get(outcome) or its.counter(outcome))()
        if ran is not None:
            its.ran(ran)
        if waited is not None:
            its.waited(waited)
        if error != "-":
            kind = its.task, error
            if kind not in _errors and len(_errors) >= MOST_ERRORS:
                kind = its.task, OTHER
            else:
                _errors.add(kind)
            TASK_ERRORS.labels(*kind).inc()

    def finished_not_kept(queue: str, tasks: int) -> None:
        FINISHED_NOT_KEPT.labels(queue).inc(tasks)

    def watch_pool(busy: Callable[[], float], free: Callable[[], float]) -> None:
        POOL.labels("busy").set_function(busy)
        POOL.labels("free").set_function(free)

    def lease_lost(queue: str, messages: int) -> None:
        LEASE_LOST.labels(queue).inc(messages)

    def unique_conflict(queue: str, outcome: str) -> None:
        UNIQUE_CONFLICTS.labels(queue, outcome).inc()

    def refused(reason: str, is_refused: bool) -> None:
        REFUSED.labels(reason).set(is_refused)

    def forget(queue: str) -> None:
        _delivered_of.cache_clear()
        _lateness_of.cache_clear()
        for metric in (LATENESS, *OF_QUEUE):
            with suppress(KeyError):
                metric.remove(queue)
        for outcome in ("dropped", "replaced"):
            with suppress(KeyError):
                UNIQUE_CONFLICTS.remove(queue, outcome)
