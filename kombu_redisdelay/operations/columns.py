"""The columns of lists of messages, queues and keys. The command line and the page read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any

from kombu_redisdelay.operations.access import natural
from kombu_redisdelay.operations.archive_reader import WITHOUT_MESSAGE
from kombu_redisdelay.operations.fair import NO_KEY, KeyLimits, shown_key
from kombu_redisdelay.operations.key_stats import KeyStats
from kombu_redisdelay.operations.limits import in_words
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.operations.queue_reasons import BLOCKED
from kombu_redisdelay.operations.states import FAILED, READY, SCHEDULED, STATES, UNACKED, State
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import percent, span

#: What a column of any list shows: a moment, or in a word why there is none; for how long it has been so,
#: seconds, a number, or a text.
MOMENT, AGE, SECONDS, NUMBER, TEXT = "moment", "age", "seconds", "number", "text"

#: Of messages: the id, the name of the queue, the worker, or the call that the task is.
ID, QUEUE, WORKER, CALL = "id", "queue", "worker", "call"

#: Of keys: the key, the limits that it has for itself, or why its messages wait.
KEY, LIMITS, REASON = "key", "limits", "reason"

#: How what is late is shown on a terminal.
LATE = "bold red"


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


@dataclass(frozen=True, slots=True)
class QueueColumn:
    """
    Attributes:
        label: what stands above it.
        kind: how its values are shown, such as :data:`NUMBER`.
        value: that of a queue; ``None`` if there is none or it is unknown.
        state: if it is a number of messages, their state.
        before: only the messages with a time before this are counted, as in
            :attr:`kombu_redisdelay.Selection.before`; empty for all.
        style: how a number that is not 0 is shown on a terminal.
        is_rare: whether the column is left out where all numbers are 0.
    """

    label: str
    kind: str
    value: Callable[[QueueStats], Any]
    state: State | None = None
    before: str = ""
    style: str = ""
    is_rare: bool = False


def _of_states() -> Iterator[tuple[str, QueueColumn]]:
    """A column for each state, "ready" first. Other columns of a state follow it."""
    for state in (STATES[READY], *(each for each in STATES.values() if each.name != READY)):
        label = state.name.capitalize()
        count = attrgetter(state.name)
        yield state.name, QueueColumn(label, NUMBER, count, state, style=state.style, is_rare=state.is_rare)
        if state.name == READY:
            yield "waiting", QueueColumn("Wait", AGE, attrgetter("waiting"))
        if state.name == FAILED:
            yield "returned", QueueColumn("Returned", NUMBER, attrgetter("returned"), is_rare=True)
        if state.name == SCHEDULED:
            overdue = QueueColumn("Overdue", NUMBER, attrgetter("overdue"), state, "0s", LATE)
            yield "overdue", overdue
            yield "blocked", QueueColumn("Blocked", NUMBER, attrgetter("blocked"), is_rare=True)


def _bound(queue: QueueStats) -> str:
    """Such as ``82 % of 5,000``."""
    share = queue.bound_share
    return "" if share is None else f"{percent(share)} of {queue.bound:,}"


#: Name -> column.
QUEUE_COLUMNS = {
    **dict(_of_states()),
    "consumers": QueueColumn("Consumers", NUMBER, attrgetter("consumers"), style="green"),
    "bound": QueueColumn("Bound", TEXT, _bound),
    "due": QueueColumn("Next due", MOMENT, attrgetter("next_due")),
    "reason": QueueColumn("Reason", TEXT, attrgetter("reason")),
}


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """
    Attributes:
        label: what stands above it.
        kind: how its values are shown, such as :data:`NUMBER`.
        value: that of a key; ``None`` if it is unknown; for the limits, those of the key.
        state: if it is a number of messages, the name of their state.
    """

    label: str
    kind: str
    value: Callable[[KeyStats], Any]
    state: str = ""

    @property
    def is_sorted_by(self) -> bool:
        return self.kind in (KEY, NUMBER, AGE)


#: A key whose messages wait is paused, or at a limit.
PAUSED, AT_LIMIT = "paused", "at its limit"


def _reason(key: KeyStats) -> str:
    if not key.is_at_limit:
        return ""
    return AT_LIMIT if key.limits.paused_since is None else PAUSED


#: Name -> column.
KEY_COLUMNS = {
    "key": KeyColumn("Key", KEY, lambda key: key.key),
    READY: KeyColumn(READY.capitalize(), NUMBER, lambda key: key.ready, READY),
    "waiting": KeyColumn("Wait", AGE, lambda key: key.waiting),
    SCHEDULED: KeyColumn(SCHEDULED.capitalize(), NUMBER, lambda key: key.scheduled, SCHEDULED),
    UNACKED: KeyColumn(UNACKED.capitalize(), NUMBER, lambda key: key.unacked, UNACKED),
    "reason": KeyColumn("Reason", REASON, _reason),
    "limits": KeyColumn("Own limits", LIMITS, lambda key: key.own),
}

#: What lists of keys can be sorted by.
SORTS = tuple(name for name, column in KEY_COLUMNS.items() if column.is_sorted_by)

#: What they are sorted by, if nothing is said.
USUAL_SORT = READY


def sort_keys(keys: Iterable[KeyStats], by: str = USUAL_SORT) -> list[KeyStats]:
    """Sort *keys* by one of :data:`SORTS`: names in natural order, numbers from the greatest to the least,
    what is unknown at the end. Of equal ones, more ready messages come first."""
    column = KEY_COLUMNS[by]
    found = sorted(keys, key=lambda key: (-key.ready, natural(key.key)))
    if column.kind == KEY:
        return sorted(found, key=lambda key: natural(key.key))
    return sorted(found, key=lambda key: -1 if column.value(key) is None else column.value(key), reverse=True)


def own_limits(limits: KeyLimits, now: datetime) -> str:
    """What a key has for itself, in words: its limits, and for how long it has been paused."""
    parts = [in_words(limits)] if limits.is_limited else []
    if limits.paused_since is not None:
        parts.append(f"paused for {span(max(0.0, (now - limits.paused_since).total_seconds()))}")
    return ", ".join(parts)
