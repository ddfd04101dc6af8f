"""What has happened in queues: in all, in each minute of the last hour, and in each hour of the last week."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

from kombu_redisdelay.broker.portions import NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.server.scripts import HISTORY, ScriptCall, run_each
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.times import from_ms

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
        failed: deliveries that have failed, see :doc:`/reliability`.
        dead: messages that became dead letters.
    """

    published: int
    delivered: int
    failed: int
    dead: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.published + other.published,
            self.delivered + other.delivered,
            self.failed + other.failed,
            self.dead + other.dead,
        )

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.published - other.published,
            self.delivered - other.delivered,
            self.failed - other.failed,
            self.dead - other.dead,
        )


@dataclass(frozen=True, slots=True)
class Period:
    """What has happened in a minute or in an hour.

    Attributes:
        start: when it began, in UTC, by the server's clock: some seconds after the full minute.
        seconds: how long it has lasted. It is longer than a minute, or an hour, if nobody looked after the
            queue meanwhile; shorter if it has not ended yet.
        counts: what has happened.
    """

    start: datetime
    seconds: int
    counts: Counts


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
        return self.totals + Counts(self.unrecorded, 0, 0, 0)


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


def _history(queue: str, now_ms: int, length: int, *fields: bytes | None) -> QueueHistory:
    delivered, failed, dead, other, published, flow = (int(field or 0) for field in fields[:6])
    minute, hour, minutes, hours = (field or b"" for field in fields[6:])
    totals = Counts(published, delivered, failed, dead)
    unrecorded = max(0, length + delivered - other - flow) if minute else 0
    now = totals + Counts(unrecorded, 0, 0, 0)
    now_s = now_ms // 1000
    return QueueHistory(
        queue,
        totals,
        unrecorded,
        list(_periods(minutes, minute, now, now_s, _MINUTES_KEPT)),
        list(_periods(hours, hour, now, now_s, _HOURS_KEPT)),
    )


def _periods(lines: bytes, mark: bytes, now: Counts, now_s: int, kept: int) -> Iterator[Period]:
    rows = [list(map(int, line.split())) for line in lines.splitlines()]
    if mark:
        start, *counts = map(int, mark.split())
        rows.append([start, max(0, now_s - start), *_numbers(now - Counts(*counts))])
    for start, seconds, *counts in rows:
        if start + seconds > now_s - kept:
            yield Period(from_ms(start * 1000), seconds, Counts(*counts))


def _numbers(counts: Counts) -> Sequence[int]:
    return counts.published, counts.delivered, counts.failed, counts.dead


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
