"""Checks the messages of a queue: those that wait for another one with their unique key, those that fail, and
those that have expired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf
from shlex import quote
from typing import NamedTuple

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.failure import CONTINUATION
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unacked import AGAIN, READY, RUNNING, SCHEDULED, Holder, living_holders
from kombu_redisdelay.broker.unique import written
from kombu_redisdelay.operations.content import Content, has_expired
from kombu_redisdelay.operations.doctor.finding import Finding, warning, wrong
from kombu_redisdelay.operations.history import queue_history
from kombu_redisdelay.operations.queue_bytes import ready_sources
from kombu_redisdelay.operations.sample import sample
from kombu_redisdelay.operations.states import FAILED
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import number_of, span

#: Blocked messages that are looked at, of each queue and partition.
MOST_LOOKED_AT = 20

#: Seconds that a task may wait for its time before it is worth a remark that others wait for it.
LONG_WAIT = 3600.0

_WHERE = {
    RUNNING: "which a worker has taken",
    READY: "which is ready",
    SCHEDULED: "which is scheduled",
    AGAIN: "which is scheduled again",
}


class _Blocked(NamedTuple):
    """A message that waits for its key, and the holder of the key; ``None`` if no message holds it."""

    id: str
    key: str
    holder: Holder | None


class _BlockedBy(NamedTuple):
    """The same if a message holds the key."""

    key: str
    holder: Holder


def check_keys(store: Store, queue: str, stats: QueueStats) -> Iterator[Finding]:
    """
    Arguments:
        queue: a queue, or one of its partitions.
        stats: those of the whole queue.
    """
    found = _blocked(store, queue)
    check = f"queue {stats.queue}"
    free = [each for each in found if each.holder is None]
    if free:
        yield _free(check, free, is_worked=bool(stats.consumers))
    blocking = [_BlockedBy(each.key, each.holder) for each in found if each.holder is not None]
    if blocking and not stats.consumers:
        key, holder = blocking[0]
        yield warning(
            check,
            f"{number_of(stats.blocked)} blocked, and no worker. {'For example, ' * (stats.blocked > 1)}"
            f"{holder.id}, {_WHERE[holder.state]}, holds the unique key {key!r}",
            "Start a worker for this queue.",
        )
    elif blocking:
        yield from _scheduled(store, queue, check, blocking)


def _blocked(store: Store, queue: str) -> list[_Blocked]:
    messages = islice(Schedule(store).iter(queue, inf, None), MOST_LOOKED_AT)
    contents = [Content.of(each.payload, each.member.decode(errors="replace")) for each in messages]
    keyed = [(content.id, content.unique) for content in contents if content.unique is not None]
    found = living_holders(store, queue, [written(key) for _, key in keyed])
    return [_Blocked(id, key, holder) for (id, key), holder in zip(keyed, found, strict=True)]


def _free(check: str, free: Sequence[_Blocked], *, is_worked: bool) -> Finding:
    blocked, *others = free
    found = f"{blocked.id} waits for its unique key {blocked.key!r}, which nobody holds any more"
    if others:
        found += f" ({number_of(len(others), 'other')} in the same way)"
    if is_worked:
        advice = (
            "Workers look at a hundred keys each ten seconds, and let it go. If this stays, see their logs."
        )
        return warning(check, found, advice)
    return wrong(check, f"{found}, and no worker", "Start a worker for this queue: it lets it go in seconds.")


def _scheduled(store: Store, queue: str, check: str, blocking: Sequence[_BlockedBy]) -> Iterator[Finding]:
    """What is to be said of holders that are scheduled, and keep others waiting."""
    keys = store.keys(queue)
    waiting = list(dict.fromkeys(each for each in blocking if each.holder.state in (SCHEDULED, AGAIN)))
    names = [each.holder.name for each in waiting]
    scores = answers(store.server, (("ZSCORE", keys.schedule, name) for name in names))
    tasks = _unknown_tasks(store, queue, names)
    now_ms = store.now_ms()
    for (key, holder), score in zip(waiting, scores, strict=True):
        seconds = 0.0 if score is None else (float(score) - now_ms) / 1000
        of_holder = f"others wait for {holder.id}, which holds the unique key {key!r} and"
        if holder.name in tasks:
            yield warning(
                check,
                f"{of_holder} waits for a worker that knows its task {tasks[holder.name]}",
                f"Start workers whose code has this task. To free the key: {_cancel(holder)}.",
            )
        elif LONG_WAIT < seconds < inf:
            yield warning(
                check,
                f"{of_holder} is due in {span(seconds)}",
                f"To deliver it now: `celery delayed deliver-now {quote(holder.id)}`. To free the key: "
                f"{_cancel(holder)}.",
            )


def _unknown_tasks(store: Store, queue: str, names: Sequence[str]) -> dict[str, str | None]:
    """Name in the schedule -> the task of a message, for those that wait for a worker that knows it."""
    keys = store.keys(queue)
    if not names or not store.server.call("EXISTS", keys.unknown):
        return {}
    stored = answers(store.server, (("HGET", keys.messages, name) for name in names))
    contents = [
        (name, Content.of(split_stored(text)[1], ""))
        for name, text in zip(names, stored, strict=True)
        if text
    ]
    return {name: content.task for name, content in contents if content.unknown_ms is not None}


def _cancel(holder: Holder) -> str:
    return f"`celery delayed cancel {quote(holder.id)}`"


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


#: Messages that are looked at.
SAMPLE = 1000

#: Bytes that are read at most, without those of the last round trip.
MOST_BYTES = 8 * 1024 * 1024


def expired_share(store: Store, queue: str) -> float:
    """Which part of the ready messages of *queue*, one partition, has expired, about."""
    now_ms, looked_at, expired = store.now_ms(), 0, 0
    for found in sample(store, ready_sources(store, queue), SAMPLE, MOST_BYTES):
        looked_at += 1
        expired += has_expired(Content.of(found.stored, ""), now_ms)
    return expired / looked_at if looked_at else 0.0
