"""Checks whether many tasks fail, and whether those that are kept push out others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kombu_redisdelay.broker.failed import FailedTasks
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.doctor.finding import Finding, warning
from kombu_redisdelay.operations.history import queue_history
from kombu_redisdelay.operations.states import FAILED
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import number_of

#: From so many on that have failed within so many seconds, and are still there, it is worth a remark: some
#: tasks always fail.
MANY_FAILED, OF_LATE = 10, 3600


def check_failed(store: Store, stats: QueueStats, names: Sequence[str]) -> Iterator[Finding]:
    """
    Arguments:
        names: those of the partitions of the queue, or its own.
    """
    if not stats.failed:
        return
    check = f"queue {stats.queue}"
    [history] = queue_history(store, [stats.queue])
    dropped = sum(minute.counts.failed_dropped for minute in history.minutes)
    if dropped:
        yield warning(
            check,
            f"at its bound of {number_of(stats.failed, 'failed task')}; "
            f"{dropped:,} were dropped in the last hour",
            "The oldest go first, whatever their kind: a task that fails often pushes out others. Raise the "
            "count, or the bytes, of keep_failed in all workers, or give that task a queue of its own.",
            mended_by=FAILED,
        )
    if stats.failed < MANY_FAILED:
        return
    of_late = sum(FailedTasks(store).counts(names, store.now_ms() - OF_LATE * 1000))
    if of_late < MANY_FAILED:
        return
    yield warning(
        check,
        f"{number_of(stats.failed, 'failed task')}, {of_late:,} of them in the last hour",
        f"See `celery delayed count --state failed --by task --by error -Q {stats.queue}`, mend the cause, "
        "then requeue or remove them.",
        mended_by=FAILED,
    )
