"""Checks queues that are paused or limited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timezone
from typing import Any

from redis.exceptions import NoPermissionError

from kombu_redisdelay.broker.control import Controls
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.control import QueueControl, queue_controls
from kombu_redisdelay.operations.doctor.finding import Finding, warning
from kombu_redisdelay.words import number_of


def check_controls(
    store: Store, queues: Sequence[str], app: Any, stock_unacked_key: str
) -> Iterator[Finding]:
    """
    Arguments:
        app: the Celery app, ``None`` if it is not known.
        stock_unacked_key: key of the hash in which workers of ``redis://`` keep what they have taken.
    """
    any_controlled = False
    for queue in dict.fromkeys(map(store.partitions.queue_of, queues)):
        try:
            [control] = queue_controls(store, [queue])
        except NoPermissionError:
            # The check of the queues has said so.
            continue
        yield from _pause(queue, control)
        yield from _partitions(store, queue)
        yield from _early_acks(queue, control, app)
        any_controlled |= control.is_paused or control.is_limited
    if any_controlled:
        yield from _stock_workers(store.server, stock_unacked_key)


def _pause(queue: str, control: QueueControl) -> Iterator[Finding]:
    if control.paused_since is not None:
        since = control.paused_since.astimezone(timezone.utc)
        yield warning(
            f"queue {queue}",
            f"paused since {since:%Y-%m-%d %H:%M} UTC",
            f"Workers take nothing from it. To go on: `celery delayed resume -Q {queue}`.",
        )


def _partitions(store: Store, queue: str) -> Iterator[Finding]:
    names = store.partitions.names(queue)
    each = [control._replace(paused_ms=bool(control.paused_ms)) for control in Controls(store).get(names)]
    if len({(control.paused_ms, control.interval_us) for control in each}) > 1:
        yield warning(
            f"queue {queue}",
            "its partitions are not all paused or limited alike",
            "Their number has changed since. Set the limits again, or pause or resume the queue again.",
        )


def _early_acks(queue: str, control: QueueControl, app: Any) -> Iterator[Finding]:
    if control.concurrency is None or app is None or app.conf.task_acks_late:
        return
    yield warning(
        f"queue {queue}",
        f"workers may hold {number_of(control.concurrency)} together, but tasks are acked before they run",
        "A message that is acked is not held any more, so more tasks may run. Set task_acks_late, or "
        "acks_late for the tasks of this queue.",
    )


def _stock_workers(server: Server, unacked_key: str) -> Iterator[Finding]:
    try:
        count = server.call("HLEN", unacked_key)
    except NoPermissionError:
        return
    if count:
        yield warning(
            "pauses and limits",
            "workers of redis:// take from this database, too",
            "They know of no pause and no limit. Have all workers use redisdelay://.",
        )
