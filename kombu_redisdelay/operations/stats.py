"""How the queues are: the numbers that the command line, the exporter and the doctor show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kombu_redisdelay.broker.portions import portions
from kombu_redisdelay.broker.server.scripts import STATS, ScriptCall, run_each
from kombu_redisdelay.broker.store import NAME_BYTES_PER_CALL, Store
from kombu_redisdelay.broker.times import from_ms

#: Queues that are looked at together.
QUEUES_PER_CALL = 100


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue, at one instant.

    Attributes:
        ready: messages that a worker may take now.
        scheduled: messages that wait for their time, overdue ones included.
        overdue: those of them whose time has come, and that nobody has moved to the ready list yet.
        unacked: messages that consumers hold.
        dead: dead letters.
        consumers: those with a lease.
        consumers_lost: those whose lease has ended, and that hold messages still.
        next_due: when the first scheduled message is, or was, due; ``None`` if nothing is scheduled.
        lateness: seconds for which the first scheduled message has been due, 0 if it is not yet.
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

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a message nor a consumer."""
        return not any((self.ready, self.scheduled, self.unacked, self.dead, self.consumers))


def queue_stats(store: Store, queues: Iterable[str]) -> list[QueueStats]:
    """The stats of *queues*. Costs a round trip for each :data:`QUEUES_PER_CALL`, whatever is in them."""
    stats = []
    for some in portions(queues, len, QUEUES_PER_CALL, NAME_BYTES_PER_CALL):
        replies = run_each(store.server, [_call(store, queue) for queue in some])
        stats += [_stats(queue, reply) for queue, reply in zip(some, replies, strict=True)]
    return stats


def _call(store: Store, queue: str) -> ScriptCall:
    keys = store.keys(queue)
    return (
        STATS,
        (keys.schedule, keys.dead, keys.consumers, *store.ready_keys(queue)),
        (keys.unacked(""),),
    )


def _stats(queue: str, reply: Sequence[Any]) -> QueueStats:
    ready, scheduled, overdue, unacked, dead, consumers, consumers_lost, due_ms, late_us = reply
    return QueueStats(
        queue=queue,
        ready=ready,
        scheduled=scheduled,
        overdue=overdue,
        unacked=unacked,
        dead=dead,
        consumers=consumers,
        consumers_lost=consumers_lost,
        next_due=None if due_ms is None else from_ms(float(due_ms)),
        lateness=late_us / 1_000_000,
    )
