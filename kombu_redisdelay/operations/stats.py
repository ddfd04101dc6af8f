"""The statistics of queues, for the command line, the exporter and the doctor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import reduce
from types import SimpleNamespace
from typing import TypeVar

from redis.exceptions import ResponseError

from kombu_redisdelay.broker import members
from kombu_redisdelay.broker.keys import ARCHIVED
from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.broker.portions import NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.server.scripts import STATS, ScriptCall, named, run_each
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.fairness import (
    Fairness,
    PartitionFairness,
    fairness_together,
    partition_fairness,
    since_ms_of,
)
from kombu_redisdelay.operations.limits import UNLIMITED, QueueLimits, queue_limits
from kombu_redisdelay.operations.queue_reasons import (
    ISOLATED,
    LOST,
    NOTICED_AFTER,
    PAUSED,
    PREFETCH,
    UNKNOWN,
    Facts,
    deserted,
    first,
    isolated,
    reason_of,
    with_unknown_tasks,
)
from kombu_redisdelay.public import public

T = TypeVar("T")

#: Queues that are read in one round trip.
QUEUES_PER_CALL = 100


@public
@dataclass(frozen=True, slots=True)
class QueueStats:
    """The statistics of one queue at one moment.

    Attributes:
        queue: name of the queue.
        ready: number of messages that a worker may take now.
        scheduled: number of scheduled messages, including overdue ones.
        overdue: number of scheduled messages that are due but not moved to the ready list yet.
        unacked: number of messages that are taken and not acked.
        dead: number of dead letters.
        failed: number of failed tasks that are kept, without those that have returned.
        returned: number of tasks that are kept among the failed ones, though they are known to have returned
            (:ref:`returned`).
        finished: of how many finished tasks a line is kept. They are no messages.
        consumers: number of consumers with a lease.
        consumers_lost: number of lost consumers that still have unacked messages: their lease has ended.
        next_due: when the first scheduled message is due, or was due; ``None`` if nothing is scheduled.
        lateness: seconds since the first scheduled message became due, 0 if it is not due yet.
        waiting: seconds for which the next ready message has waited, the longest of all priorities; 0 if
            nothing is ready, ``None`` if that is unknown, because another transport has published these
            messages.
        limits: whether the queue is paused, and its limits.
        reason: why ready or overdue messages wait; if there are none, why messages wait that were ready
            before. One of :data:`~kombu_redisdelay.operations.queue_reasons.REASONS`; ``None`` if none
            waits, they are about to be taken, or it is unknown.
        fairness: how many keys wait, if it is a fair queue; ``None`` if it is not.
        blocked: number of scheduled messages that wait for their unique key (:class:`Unique`).
        dropped: number of messages that were not published, because another one held their unique key, since
            the history of the queue began.
        replaced: number of messages that were published in place of one that held their unique key, since
            then.
        bound: how many messages may be ready and scheduled before new work is refused; ``None`` for any
            number, or if no app is known that declares it.
    """

    queue: str
    ready: int
    scheduled: int
    overdue: int
    unacked: int
    dead: int
    consumers: int
    consumers_lost: int
    next_due: datetime | None
    lateness: float
    waiting: float | None
    limits: QueueLimits
    reason: str | None = None
    blocked: int = 0
    dropped: int = 0
    replaced: int = 0
    fairness: Fairness | None = None
    failed: int = 0
    returned: int = 0
    finished: int = 0
    bound: int | None = None

    @property
    def bound_share(self) -> float | None:
        """Which part of the bound there is; ``None`` without a bound."""
        return None if self.bound is None else (self.ready + self.scheduled) / self.bound

    @property
    def messages(self) -> int:
        """Number of messages in all states."""
        is_over: int = self.returned + sum(getattr(self, state) for state in ARCHIVED)
        return self.ready + self.scheduled + self.unacked + is_over


def queue_stats(store: Store, queues: Iterable[str]) -> list[QueueStats]:
    """Return the statistics of *queues*, each with all its partitions; of a partition, if its name is given.
    Makes four round trips for every :data:`QUEUES_PER_CALL` of them, however many messages there are, and
    a few more where queues are fair, messages wait although no limit keeps them, or tasks wait for a worker
    that knows them."""
    names = {queue: store.partitions.names(queue) for queue in queues}
    each = dict.fromkeys(name for some in names.values() for name in some)
    found: dict[str, QueueStats] = {}
    listing: list[str] = []
    for some in portions(each, len, QUEUES_PER_CALL, NAME_BYTES_PER_CALL):
        replies = run_each(store.server, [_call(store, name) for name in some])
        read = dict(zip(some, map(named, replies), strict=True))
        fair = partition_fairness(store, some)
        waiting = [name for name, its in read.items() if its.ready]
        since_ms = _waiting_since_ms(store, waiting, fair)
        found |= {name: _stats(name, its, since_ms.get(name), fair.get(name)) for name, its in read.items()}
        listing += [name for name, its in read.items() if its.has_unknown]
    for name, reason in _found_out(store, found, listing).items():
        found[name] = replace(found[name], reason=reason)
    limits, bounds = queue_limits(store, list(names)), store.bounds()
    return [
        replace(
            reduce(_together, (found[name] for name in names[queue])), limits=its, bound=bounds.get(queue)
        )
        for queue, its in zip(names, limits, strict=True)
    ]


def _found_out(store: Store, found: Mapping[str, QueueStats], listing: Sequence[str]) -> dict[str, str]:
    """The reasons that need more commands, so that only some queues are looked at. *listing* are the queues
    that list tasks which a consumer did not know."""
    # The consumer of an isolated message looks full at first: no consumer takes the token.
    full = {name: stats.consumers for name, stats in found.items() if stats.reason == PREFETCH}
    names = isolated(store, full, [name for name, stats in found.items() if stats.unacked])
    left = [name for name in listing if found[name].consumers and not found[name].ready]
    quiet = [name for name, stats in found.items() if _may_be_deserted(stats)]
    return {
        **dict.fromkeys(names, ISOLATED),
        **dict.fromkeys(with_unknown_tasks(store, left), UNKNOWN),
        **dict.fromkeys(deserted(store, quiet), LOST),
    }


def _may_be_deserted(stats: QueueStats) -> bool:
    """Whether something waits that a consumer would do at once."""
    is_left_there = stats.reason not in (None, PAUSED) or stats.lateness > NOTICED_AFTER
    return bool(stats.consumers) and is_left_there


def read_each(
    read: Callable[[Store, Sequence[str]], list[T]], store: Store, queues: Sequence[str]
) -> tuple[list[T], dict[str, ResponseError]]:
    """Read all *queues*, without those that Redis refuses to read: another program may have written to their
    keys.

    Returns:
        What was read, and why the others were not.

    Raises:
        RedisError: none can be read.
    """
    try:
        return read(store, queues), {}
    except ResponseError as exc:
        if len(queues) <= 1:
            raise
        error = exc
    found: list[T] = []
    refused = {}
    for queue in queues:
        try:
            found += read(store, [queue])
        except ResponseError as exc:
            refused[queue] = exc
    if len(refused) == len(queues):
        raise error
    return found, refused


def read_some(
    read: Callable[[Store, Sequence[str]], list[T]], store: Store, queues: Sequence[str]
) -> list[T]:
    """As :func:`read_each`, where it does not matter if none can be read."""
    try:
        return read_each(read, store, queues)[0]
    except ResponseError:
        return []


def _call(store: Store, queue: str) -> ScriptCall:
    keys = store.keys(queue)
    return (
        STATS,
        (
            *(keys.schedule, keys.consumers, keys.wake, keys.limits, keys.unknown),
            *(keys.dead, *(keys.archive(state).names for state in ARCHIVED)),
            *store.ready_keys(queue),
        ),
        (keys.unacked(""), *ARCHIVED),
    )


def _waiting_since_ms(
    store: Store, queues: Sequence[str], fair: Mapping[str, PartitionFairness]
) -> dict[str, int]:
    """Since when the next ready messages of *queues* wait, for each queue the earliest time, in ms since the
    epoch. Queues are missing whose messages do not tell."""
    # No script does this: a message of 5 MB takes Redis half a millisecond, and Lua fifty times as long.
    lists = [(queue, key) for queue in queues for key in store.ready_keys(queue)]
    replies = answers(store.server, (("LINDEX", key, -1) for _, key in lists))
    found = since_ms_of(store, {queue: fair[queue] for queue in queues if queue in fair})
    for (queue, _), payload in zip(lists, replies, strict=True):
        since_ms = None if payload is None else members.due_ms(payload)
        if since_ms is not None:
            found[queue] = min(since_ms, found.get(queue, since_ms))
    return found


def _together(one: QueueStats, other: QueueStats) -> QueueStats:
    """The statistics of two partitions of a queue. Each consumer consumes from all partitions."""
    due = [each.next_due for each in (one, other) if each.next_due is not None]
    return QueueStats(
        queue=one.queue,
        ready=one.ready + other.ready,
        scheduled=one.scheduled + other.scheduled,
        overdue=one.overdue + other.overdue,
        blocked=one.blocked + other.blocked,
        dropped=one.dropped + other.dropped,
        replaced=one.replaced + other.replaced,
        **{state: getattr(one, state) + getattr(other, state) for state in ARCHIVED},
        returned=one.returned + other.returned,
        finished=one.finished + other.finished,
        unacked=one.unacked + other.unacked,
        consumers=max(one.consumers, other.consumers),
        consumers_lost=max(one.consumers_lost, other.consumers_lost),
        next_due=min(due, default=None),
        lateness=max(one.lateness, other.lateness),
        waiting=_longest(one, other),
        limits=UNLIMITED,
        reason=_reason_of_both(one.reason, other.reason),
        fairness=fairness_together((one.fairness, other.fairness)),
    )


def _reason_of_both(one: str | None, other: str | None) -> str | None:
    """A partition may be paused by its own name. That is not why the messages of the others wait."""
    rest = {one, other} - {PAUSED, None}
    return first(rest or {one, other})


def _longest(one: QueueStats, other: QueueStats) -> float | None:
    known = [each.waiting for each in (one, other) if each.ready and each.waiting is not None]
    return max(known, default=None if one.ready or other.ready else 0.0)


def _stats(
    queue: str, reply: SimpleNamespace, since_ms: int | None, fair: PartitionFairness | None
) -> QueueStats:
    """
    Arguments:
        reply: what ``stats.lua`` tells.
    """
    ready, consumers = reply.ready, reply.consumers
    waiting = 0.0 if ready == 0 else None
    if since_ms is not None:
        waiting = max(0.0, reply.now_us / 1_000_000 - since_ms / 1000)
    lateness = reply.late_us / 1_000_000
    facts = Facts(
        consumers=consumers,
        is_paused=reply.is_paused,
        has_no_permit=reply.has_no_permit,
        has_no_token=reply.has_no_token,
        waits_for_keys=bool(fair and fair.waits_for_keys),
        has_waker=reply.has_waker,
        unacked=reply.unacked,
        waiting=waiting,
        lateness=lateness,
    )
    as_replied = {
        each.name: getattr(reply, each.name) for each in fields(QueueStats) if hasattr(reply, each.name)
    }
    # An older release may have left names among those that have returned.
    failed, returned = max(0, reply.failed - reply.returned), min(reply.returned, reply.failed)
    return QueueStats(
        queue=queue,
        **{**as_replied, "failed": failed, "returned": returned},
        next_due=None if reply.due_ms is None else from_ms(float(reply.due_ms)),
        lateness=lateness,
        waiting=waiting,
        limits=UNLIMITED,
        reason=reason_of(facts) if ready or not consumers else None,
        fairness=None if fair is None else fair.fairness,
    )
