"""Checks queues that are declared with a largest length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.access import declared_bound, has_length, is_to_refuse, overflow_of
from kombu_redisdelay.operations.doctor.finding import Finding, warning, wrong
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import number_of

#: From this share of the bound on, new work will soon be refused.
ALMOST_FULL = 0.8


def check_bound(store: Store, stats: QueueStats, app: Any) -> Iterator[Finding]:
    """
    Arguments:
        app: the Celery app, ``None`` if it is not known.
    """
    check = f"queue {stats.queue}"
    declared = None if app is None else app.amqp.queues.get(stats.queue)
    if declared is None:
        return
    try:
        bound = declared_bound(declared, store.partitions)
    except ValueError as exc:
        yield wrong(
            check, f"it cannot be declared: {exc}", "Nothing can be published to it. Correct its max_length."
        )
        return
    overflow = overflow_of(declared)
    if bound is None and has_length(declared):
        reason = "it has no x-overflow" if overflow is None else f"its x-overflow is {overflow!r}"
        yield warning(
            check,
            f"its max_length has no effect, because {reason}: any number of messages may wait",
            "To have new work refused, declare it with queue_arguments={'x-overflow': 'reject-publish'}. To "
            "drop the oldest messages, as RabbitMQ does, is not possible here.",
        )
    elif bound is None and is_to_refuse(declared):
        yield warning(
            check,
            "its x-overflow has no effect, because it has no max_length: any number of messages may wait",
            "To have new work refused, declare it with max_length, too. A bound in bytes is not possible.",
        )
    elif is_almost_full(stats):
        waiting = number_of(stats.ready + stats.scheduled)
        moment = "now" if (stats.bound_share or 0) >= 1 else "soon"
        start = "more workers" if stats.consumers else "a worker"
        yield warning(
            check,
            f"{waiting} wait, and it may have {stats.bound:,}: new work is refused {moment}"
            f"{'' if stats.consumers else ', and no worker takes them'}",
            f"Start {start} for this queue, or see what fills it: `celery delayed count --by task "
            f"-Q {stats.queue}`.",
        )


def is_almost_full(stats: QueueStats) -> bool:
    """Whether the queue has a bound, and new work is refused, or will soon be."""
    return stats.bound_share is not None and stats.bound_share >= ALMOST_FULL
