"""The columns of lists of queues. The command line and the page read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from kombu_redisdelay.operations.states import FAILED, READY, SCHEDULED, STATES, State
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import percent

#: What a column shows: a number, for how long it has been so, a moment, or a text.
NUMBER, AGE, MOMENT, TEXT = "number", "age", "moment", "text"

#: How what is late is shown on a terminal.
LATE = "bold red"


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
