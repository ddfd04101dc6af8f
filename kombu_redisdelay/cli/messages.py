"""Messages as tables, for the commands that list them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any

from kombu_redisdelay.cli.output import call, fixed, flexible, right, table, unusual
from kombu_redisdelay.cli.table import Table
from kombu_redisdelay.operations.delayed import DelayedMessage
from kombu_redisdelay.operations.queued import DEAD, HELD, READY, SCHEDULED, QueuedMessage
from kombu_redisdelay.words import span, when

#: Who wants to cancel a message must see all of its id: a UUID, or the SHA-1 of what is not a message.
_ID = flexible("ID", least=48)
_QUEUE = flexible("QUEUE")

#: The name of a queue that is not beside an id can be read, and copied.
_QUEUE_BESIDE_TASK = flexible("QUEUE", least=30)
_TASK = flexible("TASK", least=20)

#: Why a message died and what it is are what matters of it.
_REASON_AND_TASK = flexible("REASON", least=28), flexible("TASK", least=20)


def scheduled(messages: Iterable[DelayedMessage]) -> Table:
    now = _now()
    rows = table(fixed("DUE"), _ID, _QUEUE_BESIDE_TASK, _TASK, below=2)
    for message in messages:
        rows.add_row(when(message.due, now), message.id, message.queue, call(message))
    return rows


def ready(messages: Iterable[QueuedMessage]) -> Table:
    now = _now()
    first = (right("PLACE"), right("WAIT"), unusual("PRIORITY", "0"))
    rows = table(*first, _ID, _QUEUE_BESIDE_TASK, _TASK, below=2)
    for message in messages:
        waited = _since(message.waiting_since, now)
        place, priority = str(message.place), str(message.priority)
        rows.add_row(place, waited, priority, message.id, message.queue, call(message))
    return rows


def held(messages: Iterable[QueuedMessage]) -> Table:
    now = _now()
    rows = table(right("HELD"), _ID, fixed("WORKER"), _QUEUE, _TASK, below=3)
    for message in messages:
        since = _since(message.held_since, now)
        rows.add_row(since, message.id, worker(message), message.queue, call(message))
    return rows


def dead(messages: Iterable[QueuedMessage]) -> Table:
    now = _now()
    rows = table(fixed("DIED"), _ID, _QUEUE, right("TIMES"), *_REASON_AND_TASK, below=2)
    for message in messages:
        died, times = _when(message.died, now), str(message.deliveries)
        rows.add_row(died, message.id, message.queue, times, message.reason, call(message))
    return rows


def in_any_state(messages: Iterable[QueuedMessage]) -> Table:
    now = _now()
    rows = table(fixed("STATE"), fixed("WHEN"), _ID, _QUEUE_BESIDE_TASK, flexible("TASK", least=12), below=2)
    for message in messages:
        moment = message.due or message.waiting_since or message.held_since or message.died
        rows.add_row(message.state, _when(moment, now), message.id, message.queue, call(message))
    return rows


#: State -> the table of messages that are in it.
OF_STATE: dict[str, Callable[[Iterable[Any]], Table]] = {
    SCHEDULED: scheduled,
    READY: ready,
    HELD: held,
    DEAD: dead,
}


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _since(moment: datetime | None, now: datetime) -> str:
    """For how long it has been so."""
    return "?" if moment is None else span(max(0.0, (now - moment).total_seconds()))


def _when(moment: datetime | None, now: datetime) -> str:
    return "?" if moment is None else when(moment, now)


def worker(message: QueuedMessage) -> str:
    """Name of a worker, or its host, and process."""
    gone = " (gone)" if message.process_is_gone else ""
    return f"{message.worker or message.host or '?'}:{'?' if message.pid is None else message.pid}{gone}"
