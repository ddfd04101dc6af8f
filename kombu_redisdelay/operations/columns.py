"""The columns of lists of messages. The command line and the page show those that a state names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kombu_redisdelay.operations.archive_reader import WITHOUT_MESSAGE
from kombu_redisdelay.operations.fair import NO_KEY, shown_key
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.operations.queue_reasons import BLOCKED
from kombu_redisdelay.operations.states import State

#: What a column shows: a moment, or in a word why there is none; for how long it has been so, seconds, a
#: number, a text, the id of the message, the name of its queue, its worker, or the call that its task is.
MOMENT, AGE, SECONDS, NUMBER, TEXT = "moment", "age", "seconds", "number", "text"
ID, QUEUE, WORKER, CALL = "id", "queue", "worker", "call"


@dataclass(frozen=True, slots=True)
class Column:
    """
    Attributes:
        label: what stands above it.
        kind: how its values are shown, such as :data:`MOMENT`.
        value: that of a message; of a worker or a call, the message itself.
        least: to how many characters a text may be cut where there is little room. ``None``: never.
        usual: if all messages have this value, the column is left out. ``None``: never.
    """

    label: str
    kind: str
    value: Callable[[MessageInfo], Any]
    least: int | None = None
    usual: Any = None


def _error(message: MessageInfo) -> str:
    return f"{message.error}, no message" if WITHOUT_MESSAGE in message.reason else message.error


#: Name -> column.
COLUMNS = {
    "state": Column("State", TEXT, lambda message: message.state),
    "moment": Column("When", MOMENT, lambda message: BLOCKED if message.is_blocked else message.moment),
    "due": Column("Due", MOMENT, lambda message: BLOCKED if message.is_blocked else message.due),
    "expires": Column("Expires", MOMENT, lambda message: message.expires or "-", usual="-"),
    "since": Column("Since", AGE, lambda message: message.since),
    "position": Column("Position", NUMBER, lambda message: message.position),
    "priority": Column("Priority", NUMBER, lambda message: message.priority, usual=0),
    # To cancel a message, one needs all of its id: a UUID, or the SHA-1 of what is not a message.
    "id": Column("Id", ID, lambda message: message.id, least=48),
    "worker": Column("Worker", WORKER, lambda message: message),
    # Enough to read and copy most names.
    "queue": Column("Queue", QUEUE, lambda message: message.queue, least=30),
    "failures": Column("Failures", NUMBER, lambda message: message.failures, usual=0),
    # "blocked by" and a UUID: one needs all of it.
    "reason": Column("Reason", TEXT, lambda message: message.reason, least=47, usual=""),
    "tries": Column("Tries", NUMBER, lambda message: message.tries, usual=1),
    "error": Column("Error", TEXT, _error, least=17, usual=""),
    "returned": Column("Returned", TEXT, lambda message: message.returned, least=12, usual=""),
    "outcome": Column("Outcome", TEXT, lambda message: message.outcome, least=10),
    "waited": Column("Waited", SECONDS, lambda message: message.waited),
    "ran": Column("Ran", SECONDS, lambda message: message.ran),
    "key": Column("Key", TEXT, lambda message: shown_key(message.key), least=20, usual=NO_KEY),
    "unique": Column("Unique", TEXT, lambda message: message.unique or "", least=20, usual=""),
    "task": Column("Task", CALL, lambda message: message, least=17),
    # Of what is told of a task: its arguments and its process are not known any more.
    "worker name": Column("Worker", TEXT, lambda message: message.worker or "?", least=17),
    "task name": Column("Task", TEXT, lambda message: message.task or "-", least=17),
}

#: Those of a list with messages in several states.
OF_ANY_STATE = {
    **{name: COLUMNS[name] for name in ("state", "moment", "expires", "key", "unique", "id")},
    # In 80 columns, there is room for all of a UUID between the other two.
    "queue": replace(COLUMNS["queue"], least=18),
    "blocker": Column("Blocked by", TEXT, lambda message: message.blocker or "", least=36, usual=""),
    "returned": COLUMNS["returned"],
    "task": replace(COLUMNS["task"], least=10),
}


def columns_of(state: State) -> dict[str, Column]:
    """The columns of lists of messages in one *state*, by their names."""
    return {name: COLUMNS[name] for name in state.columns}


def moment_label(state: State) -> str:
    """What stands above the moments of messages in this *state*."""
    return COLUMNS["due" if state.is_ahead else "since"].label
