"""How the queues are: the numbers that the command line, the exporter and the doctor show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from kombu_redisdelay.broker.scripts import STATS
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.times import from_ms


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
    """The stats of *queues*. Costs a round trip for each, whatever is in them."""
    return [_stats_of_one(store, queue) for queue in queues]


def _stats_of_one(store: Store, queue: str) -> QueueStats:
    keys = store.keys(queue)
    ready, scheduled, overdue, unacked, dead, consumers, consumers_lost, due_ms, late_us = STATS(
        store.client,
        (keys.schedule, keys.dead, keys.consumers, *store.ready_keys(queue)),
        (keys.unacked(""),),
    )
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
