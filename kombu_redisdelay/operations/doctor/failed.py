"""Checks whether many tasks fail, whether those that are kept push out others, and whether what follows one
was not sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.failure import CONTINUATION
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.doctor.finding import Finding, warning, wrong
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
    if not stats.failed + stats.returned:
        return
    check = f"queue {stats.queue}"
    if lost := _continuations(store, names) if stats.returned else 0:
        has, its = ("has", "it") if lost == 1 else ("have", "them")
        yield wrong(
            check,
            f"{number_of(lost, 'task')} {has} returned, and what follows {its} was not sent, or not all",
            f"See `celery delayed list --state failed --returned {CONTINUATION} -Q {stats.queue}`, send what "
            f"is missing, then remove {its}. To requeue {its} does the work once more.",
            mended_by=FAILED,
        )
    [history] = queue_history(store, [stats.queue])
    dropped = sum(minute.counts.failed_dropped for minute in history.minutes)
    if dropped:
        yield warning(
            check,
            f"at its bound of {number_of(stats.failed + stats.returned, 'failed task')}; "
            f"{dropped:,} were dropped in the last hour",
            "The oldest go first, whatever their kind: a task that fails often pushes out others. Raise the "
            "count, or the bytes, of keep_failed in all workers, or give that task a queue of its own.",
            mended_by=FAILED,
        )
    if stats.failed < MANY_FAILED:
        return
    tasks, since_ms = Archive(store, FAILED), store.now_ms() - OF_LATE * 1000
    of_late = sum(tasks.counts(names, since_ms)) - sum(tasks.returned(names, since_ms))
    if of_late < MANY_FAILED:
        return
    yield warning(
        check,
        f"{number_of(stats.failed, 'failed task')}, {of_late:,} of them in the last hour",
        f"See `celery delayed count --state failed --by task --by error -Q {stats.queue}`, mend the cause, "
        "then requeue or remove them.",
        mended_by=FAILED,
    )


def _continuations(store: Store, names: Sequence[str]) -> int:
    groups = (group for name in names for group in Archive(store, FAILED).groups(name))
    return sum(group.count for group in groups if group.returned == CONTINUATION)
