"""What has happened in queues: in all, in each minute of the last hour, and in each hour of the last week."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from functools import reduce
from operator import add, sub
from typing import Any

from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.broker.portions import NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.server.scripts import HISTORY, ScriptCall, run_each
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.public import public

#: Queues that are read in one round trip.
QUEUES_PER_CALL = 100

_MINUTE, _HOUR = 60, 3600

#: Seconds that minutes and hours are kept.
_MINUTES_KEPT, _HOURS_KEPT = 3600, 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages something has happened to.

    Attributes:
        published: messages that were published, whether they are due or not. It is derived from the other
            numbers and the length of the queue.
        delivered: deliveries to consumers that ack, redeliveries included.
        failures: deliveries that have failed, see :doc:`/reliability`.
        dead: messages that became dead letters.
        dropped: messages that were not published, because another one held their key (:doc:`/unique`). They
            do not count as published.
        replaced: messages that were published in place of one that held their key. They do not count as
            published either.
        failed: tasks that have failed for good (:doc:`/failed`), also if they could not be kept.
        failed_dropped: failed tasks that were dropped because the queue keeps no more of them, or no more
            bytes. Those that were too old do not count.
        returned: tasks that are known to have returned, and could not be ended (:ref:`returned`). They do not
            count as failed.
        continuations: of these, the ones of which something that follows was not sent.
    """

    published: int = 0
    delivered: int = 0
    failures: int = 0
    dead: int = 0
    dropped: int = 0
    replaced: int = 0
    failed: int = 0
    failed_dropped: int = 0
    returned: int = 0
    continuations: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*map(sub, astuple(self), astuple(other)))


@public
@dataclass(frozen=True, slots=True)
class Period:
    """What has happened in a minute or in an hour.

    Attributes:
        start: when it began, in UTC, by the server's clock: some seconds after the full minute.
        seconds: how long it has lasted. It is longer than a minute, or an hour, if the queue had no
            maintenance meanwhile; shorter if it has not ended yet.
        counts: what has happened.
    """

    start: datetime
    seconds: int
    counts: Counts


@public
@dataclass(frozen=True, slots=True)
class QueueHistory:
    """What has happened in one queue.

    Attributes:
        queue: name of the queue.
        totals: since the history began, when a consumer first came. They only grow, until the queue is
            deleted or forgotten. ``published`` is the one of the latest record, which is a minute old at most
            while a consumer looks after the queue.
        unrecorded: messages that were published since the latest record.
        minutes: those of the last hour in which something happened, the oldest first; then the one that has
            not ended yet.
        hours: the same for the last week.
    """

    queue: str
    totals: Counts
    unrecorded: int
    minutes: Sequence[Period]
    hours: Sequence[Period]

    @property
    def now(self) -> Counts:
        """The totals with what is unrecorded."""
        return self.totals + Counts(self.unrecorded)


def queue_history(store: Store, queues: Iterable[str]) -> list[QueueHistory]:
    """Return the history of *queues*, each with all its partitions; of a partition, if its name is given.
    Makes one round trip for every :data:`QUEUES_PER_CALL` of them."""
    names = {queue: store.partitions.names(queue) for queue in queues}
    each = dict.fromkeys(name for some in names.values() for name in some)
    found: dict[str, QueueHistory] = {}
    for some in portions(each, len, QUEUES_PER_CALL, NAME_BYTES_PER_CALL):
        replies = run_each(store.server, [_call(store, name) for name in some])
        found |= {name: _history(name, *reply) for name, reply in zip(some, replies, strict=True)}
    return [reduce(_together, (found[name] for name in names[queue])) for queue in names]


def minutes_together(histories: Iterable[QueueHistory]) -> Sequence[Period]:
    """What has happened in several queues together, by minute. They are recorded at different seconds of the
    same minute."""
    return reduce(_minutes_added, (history.minutes for history in histories), ())


def hours_together(histories: Iterable[QueueHistory]) -> Sequence[Period]:
    """What has happened in several queues together, by hour."""
    return reduce(_hours_added, (history.hours for history in histories), ())


def _call(store: Store, queue: str) -> ScriptCall:
    keys = store.keys(queue)
    return HISTORY, (keys.history, keys.schedule, *store.ready_keys(queue)), ()


#: The fields of the hash in Redis that are one number each.
_TOTALS = (
    *("delivered", "failed", "dead", "dropped", "replaced", "failed_tasks", "failed_dropped"),
    *("returned", "continuations", "other", "published", "flow"),
)

#: How many numbers a line has at most, beside its times; and how many it always has. Those that are left out
#: are 0.
_COUNTS, _LEAST_COUNTS = len(fields(Counts)), 8

#: The fields that have lines of numbers, and how many of these are times.
_LINES = {"minute": 1, "hour": 1, "minutes": 2, "hours": 2}

#: A number in Redis. Numbers that Redis counts with have no more digits.
_NUMBER = re.compile(rb"-?\d{1,19}")


def unreadable_fields(store: Store, queue: str) -> list[str]:
    """The fields of the history of *queue* that do not hold what belongs there. They count as missing."""
    [(_, _, *values)] = run_each(store.server, [_call(store, queue)])
    fields = {name: value for name, value in zip((*_TOTALS, *_LINES), values, strict=True) if value}
    return [
        name
        for name, value in fields.items()
        if (
            len(_rows(value, _LINES[name])) < len(value.splitlines())
            if name in _LINES
            else not _NUMBER.fullmatch(value)
        )
    ]


def _number(value: bytes | None) -> int:
    return int(value) if value and _NUMBER.fullmatch(value) else 0


def _rows(value: bytes | None, times: int) -> list[list[int]]:
    """The numbers of those lines that have a right count."""
    rows = [line.split() for line in (value or b"").splitlines()]
    return [
        [*map(int, row), *[0] * (times + _COUNTS - len(row))]
        for row in rows
        if _LEAST_COUNTS <= len(row) - times <= _COUNTS and all(map(_NUMBER.fullmatch, row))
    ]


def _history(queue: str, now_ms: int, length: int, *values: bytes | None) -> QueueHistory:
    delivered, *counts, other, published, flow = map(_number, values[: len(_TOTALS)])
    minute, hour, minutes, hours = map(_rows, values[len(_TOTALS) :], _LINES.values())
    totals = Counts(published, delivered, *counts)
    unrecorded = max(0, length + delivered - other - flow) if minute else 0
    now = totals + Counts(unrecorded)
    now_s = now_ms // 1000
    return QueueHistory(
        queue,
        totals,
        unrecorded,
        list(_periods(minutes, minute, now, now_s, _MINUTES_KEPT)),
        list(_periods(hours, hour, now, now_s, _HOURS_KEPT)),
    )


def _periods(
    ended: Sequence[list[int]], marks: Sequence[list[int]], now: Counts, now_s: int, kept: int
) -> Iterator[Period]:
    going_on = [
        [start, max(0, now_s - start), *astuple(now - Counts(*counts))] for start, *counts in marks[:1]
    ]
    for start, seconds, *counts in (*ended, *going_on):
        if start + seconds > now_s - kept:
            yield Period(from_ms(start * 1000), seconds, Counts(*counts))


def _together(one: QueueHistory, other: QueueHistory) -> QueueHistory:
    """The history of two partitions of a queue."""
    return QueueHistory(
        one.queue,
        one.totals + other.totals,
        one.unrecorded + other.unrecorded,
        _minutes_added(one.minutes, other.minutes),
        _hours_added(one.hours, other.hours),
    )


def _minutes_added(one: Sequence[Period], other: Sequence[Period]) -> Sequence[Period]:
    return _added(one, other, _MINUTE)


def _hours_added(one: Sequence[Period], other: Sequence[Period]) -> Sequence[Period]:
    return _added(one, other, _HOUR)


def _added(one: Sequence[Period], other: Sequence[Period], unit: int) -> Sequence[Period]:
    found: dict[Any, Period] = {}
    for period in (*one, *other):
        begun = period.start.timestamp() // unit
        same = found.get(begun)
        if same is not None:
            period = Period(
                min(same.start, period.start), max(same.seconds, period.seconds), same.counts + period.counts
            )
        found[begun] = period
    return [found[begun] for begun in sorted(found)]
