"""How the queues are: the numbers that the command line, the exporter and the doctor show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from kombu_redisdelay.broker.store import Store


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


def server_time_ms(store: Store) -> int:
    """The server's clock, ms since the epoch."""
    seconds, microseconds = store.client.execute_command("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


def queue_stats(store: Store, queues: Iterable[str]) -> list[QueueStats]:
    """The stats of *queues*. Costs one round trip, and one more for each queue, whatever is in them."""
    names = list(queues)
    with store.client.pipeline(transaction=False) as pipe:
        pipe.execute_command("TIME")
        for queue in names:
            pipe.execute_command("ZRANGE", store.keys(queue).consumers, 0, -1)
        (seconds, microseconds), *consumers = pipe.execute()
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    return [
        _stats_of_one(store, queue, list(map(bytes.decode, held_by)), now_ms)
        for queue, held_by in zip(names, consumers, strict=True)
    ]


def _stats_of_one(store: Store, queue: str, consumers: list[str], now_ms: int) -> QueueStats:
    keys = store.keys(queue)
    ready_keys = store.ready_keys(queue)
    # As one transaction, so that a message on its way from one place to another is counted once.
    with store.client.pipeline(transaction=True) as pipe:
        pipe.execute_command("ZCARD", keys.schedule)
        pipe.execute_command("ZCOUNT", keys.schedule, "-inf", now_ms)
        pipe.execute_command("ZRANGE", keys.schedule, 0, 0, "WITHSCORES")
        pipe.execute_command("LLEN", keys.dead)
        for ready_key in ready_keys:
            pipe.execute_command("LLEN", ready_key)
        for consumer in consumers:
            pipe.execute_command("ZSCORE", keys.consumers, consumer)
            pipe.execute_command("HLEN", keys.unacked(consumer))
        scheduled, overdue, first, dead, *counts = pipe.execute()
    ready, leases_and_held = counts[: len(ready_keys)], counts[len(ready_keys) :]
    held = leases_and_held[1::2]
    # A consumer that has gone since we asked who there is has no lease end any more.
    alive = [lease_end is not None and float(lease_end) > now_ms for lease_end in leases_and_held[::2]]
    due_ms = _first_score(first)
    return QueueStats(
        queue=queue,
        ready=sum(ready),
        scheduled=scheduled,
        overdue=overdue,
        unacked=sum(held),
        dead=dead,
        consumers=sum(alive),
        consumers_lost=sum(count > 0 and not lives for lives, count in zip(alive, held, strict=True)),
        next_due=None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, timezone.utc),
        lateness=0.0 if due_ms is None else max(0.0, (now_ms - due_ms) / 1000),
    )


def _first_score(rows: list[Any]) -> float | None:
    """The score in the reply to ``ZRANGE 0 0 WITHSCORES``: a flat list, or pairs over RESP 3."""
    if not rows:
        return None
    return float(rows[0][1] if isinstance(rows[0], (list, tuple)) else rows[1])
