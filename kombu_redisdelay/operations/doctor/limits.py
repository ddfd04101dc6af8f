"""Checks queues that are paused or limited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timezone
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from kombu_redisdelay.broker.limits import LimitStore
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.app_tasks import import_tasks, queue_of
from kombu_redisdelay.operations.doctor.finding import Finding, warning
from kombu_redisdelay.operations.fair import fair_states
from kombu_redisdelay.operations.limits import QueueLimits, queue_limits
from kombu_redisdelay.words import first_of, number_of

#: Partitions that are named.
MOST_NAMED = 10


def check_limits(store: Store, queue: str, limits: QueueLimits, app: Any) -> Iterator[Finding]:
    """
    Arguments:
        app: the Celery app, ``None`` if it is not known.
    """
    yield from _pause(queue, limits, app)
    yield from _partitions(store, queue)
    yield from check_early_acks(store, queue, limits.concurrency, app)


def check_stock_workers(store: Store, queues: Sequence[str], unacked_key: str) -> Iterator[Finding]:
    """
    Arguments:
        unacked_key: key of the hash in which workers of ``redis://`` keep what they have taken.
    """
    steered = [_is_steered(store, queue) for queue in queues]
    if any(is_limited for is_limited, _ in steered):
        yield from _stock_workers(
            store.server,
            unacked_key,
            "pauses and limits",
            "They know of no pause and no limit. Have all workers use redisdelay://.",
        )
    if any(is_fair for _, is_fair in steered):
        yield from check_stock_workers_of_fair(store, unacked_key)


def check_stock_workers_of_fair(store: Store, unacked_key: str) -> Iterator[Finding]:
    """The same where a queue is fair."""
    yield from _stock_workers(
        store.server,
        unacked_key,
        "fair queues",
        "In a fair queue, they see only what is not sorted in by key yet, and know no turns. Have all "
        "workers of fair queues use redisdelay://.",
    )


def _is_steered(store: Store, queue: str) -> tuple[bool, bool]:
    """Whether a queue is paused or limited, and whether it is fair."""
    try:
        [limits], [state] = queue_limits(store, [queue]), fair_states(store, [queue])
    except ResponseError:
        # The check of the queues has said so.
        return False, False
    return limits.is_paused or limits.is_limited, bool(state)


def _pause(queue: str, limits: QueueLimits, app: Any) -> Iterator[Finding]:
    if limits.paused_since is not None:
        since = limits.paused_since.astimezone(timezone.utc if app is None else app.timezone)
        yield warning(
            f"queue {queue}",
            f"paused since {since.isoformat(' ', 'seconds')}",
            f"Workers take nothing from it. To go on: `celery delayed resume -Q {queue}`.",
            mended_by="resume",
        )


def _partitions(store: Store, queue: str) -> Iterator[Finding]:
    names = store.partitions.names(queue)
    each = [limits._replace(paused_ms=bool(limits.paused_ms)) for limits in LimitStore(store).get(names)]
    if len({(limits.paused_ms, limits.interval_us) for limits in each}) > 1:
        paused = [name for name, limits in zip(names, each, strict=True) if limits.paused_ms]
        some = f": {first_of(paused, MOST_NAMED)} paused" if 0 < len(paused) < len(names) else ""
        yield warning(
            f"queue {queue}",
            f"its partitions are not all paused or limited alike{some}",
            "One was paused or limited by its own name, or their number has changed since. Set the limits "
            "again, or pause or resume the queue again.",
            mended_by="limit",
        )


def check_early_acks(
    store: Store, queue: str, concurrency: int | None, app: Any, keys: str = ""
) -> Iterator[Finding]:
    """Says nothing if the tasks of the app cannot be imported.

    Arguments:
        concurrency: a limit of the queue or of its keys, which late acks need; ``None`` for no limit.
        keys: if it is a limit of keys, ``each key`` or ``the key``.
    """
    if concurrency is None or app is None or import_tasks(app):
        return
    tasks = {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}
    of_queue = [name for name in tasks if queue_of(app, name) == queue]
    early = sorted(name for name in of_queue or tasks if not tasks[name].acks_late)
    if not early and (tasks or app.conf.task_acks_late):
        return
    partitions = len(store.partitions.names(queue))
    each = f" in each of {partitions} partitions" if keys and partitions > 1 else ""
    of = f" of {keys}" if keys else ""
    which = "tasks without acks_late are acked before they run"
    if of_queue:
        which = f"these tasks are acked before they run: {', '.join(early)}"
    yield warning(
        f"queue {queue}",
        f"workers may hold {number_of(concurrency)}{of} together{each}, but {which}",
        "A message that is acked is not held any more, so more tasks may run. Set task_acks_late, or "
        "acks_late for the tasks of this queue.",
    )


def _stock_workers(server: Server, unacked_key: str, check: str, advice: str) -> Iterator[Finding]:
    try:
        count = server.call("HLEN", unacked_key)
    except NoPermissionError:
        return
    if count:
        yield warning(check, "workers of redis:// take from this database, too", advice)
