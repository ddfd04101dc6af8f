"""Checks messages that wait for another one with their unique key, and whether anything lets them go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf
from shlex import quote
from typing import NamedTuple

from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unacked import AGAIN, READY, RUNNING, SCHEDULED, Holder, living_holders
from kombu_redisdelay.broker.unique import written
from kombu_redisdelay.operations.content import Content
from kombu_redisdelay.operations.doctor.finding import Finding, warning, wrong
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
