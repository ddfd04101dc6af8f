"""Logs which messages became dead letters, and counts them for Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.failure import CONTINUATION, HOOK, RESULT, Failure
from kombu_redisdelay.broker.message import task_and_id, which
from kombu_redisdelay.broker.options import KeepFailed, Options
from kombu_redisdelay.broker.printable import cut, printable
from kombu_redisdelay.broker.store import Store

logger = logging.getLogger(__name__)


def report_dead(store: Store, options: Options, queue: str, dead: int, briefs: Sequence[bytes]) -> None:
    """Log that *dead* messages of *queue* have reached the delivery limit. *briefs* are of some of them."""
    if dead:
        metrics.dead_lettered(queue, dead)
        store.remember(queue)
        logger.error(
            "%d message(s) of queue %r reached the delivery limit of %d and are now dead letters%s",
            dead,
            queue,
            options.delivery_limit,
            which(map(task_and_id, briefs), dead),
        )


def report_returned(queue: str, failure: Failure) -> None:
    """Log what was lost of a task that has returned, and why."""
    why = printable(" ".join(cut(f"{failure.error}: {failure.text}").split()))
    names = which([f"{failure.task}[{failure.id}]"], 1)
    if failure.returned == CONTINUATION:
        logger.error(
            "A task of queue %r has returned, and what follows it was not sent, or not all of it: what is "
            "linked to it, the rest of its chain, or the body of its chord. Its result was lost, too (%s). "
            "It does not run again by itself%s",
            queue,
            why,
            names,
        )
    elif failure.returned == RESULT:
        logger.warning(
            "A task of queue %r has returned, and its result was lost (%s). It does not run again by "
            "itself%s",
            queue,
            why,
            names,
        )
    elif failure.returned == HOOK:
        logger.warning(
            "A task of queue %r has returned, and what ran afterwards has raised an error, such as its "
            "on_success (%s). It does not run again by itself%s",
            queue,
            why,
            names,
        )


def report_not_kept(queue: str, failure: Failure) -> None:
    """Log that a task that has failed, or that has returned and could not be ended, could not be kept."""
    metrics.not_kept(queue)
    if failure.returned:
        logger.error(
            "What was lost of a task of queue %r that has returned is in this log only: Redis is out of "
            "memory, or another program has written to the keys of failed tasks%s",
            queue,
            which([f"{failure.task}[{failure.id}]"], 1),
        )
        return
    logger.error(
        "A failed task of queue %r could not be kept: Redis is out of memory, or another program has written "
        "to the keys of failed tasks%s",
        queue,
        which([f"{failure.task}[{failure.id}]"], 1),
    )


def report_failed_dropped(queue: str, keep: KeepFailed, dropped: int) -> None:
    """Log that *dropped* failed tasks of *queue* were dropped, because more were kept than a worker keeps."""
    if dropped:
        logger.warning(
            "Dropped %d failed task(s) of queue %r, the oldest first: it keeps no more. keep_failed of this "
            "worker says count=%d, bytes=%d, and the smallest of all workers holds. This is said once in ten "
            "minutes at most",
            dropped,
            queue,
            keep.count,
            keep.bytes,
        )


def report_dropped(options: Options, queue: str, dropped: int) -> None:
    """Log that *dropped* dead letters of *queue* were dropped because newer ones came."""
    if dropped:
        logger.error(
            "Queue %r has more than dead_letter_limit=%d dead letters: dropped the oldest %d",
            queue,
            options.dead_letter_limit,
            dropped,
        )
