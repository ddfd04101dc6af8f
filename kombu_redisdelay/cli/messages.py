"""Messages as tables, for the commands that list them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from functools import partial
from itertools import takewhile
from typing import Any

from kombu_redisdelay.cli.output import table
from kombu_redisdelay.cli.table import Column, Table
from kombu_redisdelay.operations import columns
from kombu_redisdelay.operations.message import MessageInfo, call, printed_worker
from kombu_redisdelay.operations.states import State
from kombu_redisdelay.words import span, when

#: Columns of these kinds at the end may go into a second line of each row.
_BELOW = (columns.QUEUE, columns.TEXT, columns.WORKER, columns.CALL)

#: To how many characters the name of a queue may be cut beside an id or a worker, which need the room.
_LEAST_BESIDE = 8


#: How much of a text is shown, and of a task with its arguments, in characters. Any program may set an id of
#: any length.
LONGEST, LONGEST_CALL = 200, 4000


def message_table(states: Sequence[State]) -> Callable[[Iterable[MessageInfo]], Table]:
    """Makes a table of messages that are in these *states*."""
    shown = columns.columns_of(states[0]) if len(states) == 1 else columns.OF_ANY_STATE
    return partial(_table, list(shown.values()))


def _table(shown: Sequence[columns.Column], messages: Iterable[MessageInfo]) -> Table:
    now = datetime.now(timezone.utc)
    below = len(list(takewhile(lambda each: each.kind in _BELOW, reversed(shown))))
    lines = shown[: len(shown) - below], shown[len(shown) - below :]
    rows = table(*(_column(each, line) for line in lines for each in line), below=below)
    for message in messages:
        rows.add_row(*(_text(each, message, now) for each in shown))
    return rows


def _text(column: columns.Column, message: MessageInfo, now: datetime) -> str:
    text = _TEXTS[column.kind](column.value(message), now)
    longest = LONGEST_CALL if column.kind == columns.CALL else LONGEST
    return text if len(text) <= longest else f"{text[:longest]}…"


def _column(shown: columns.Column, line: Sequence[columns.Column]) -> Column:
    """A column of the table.

    Arguments:
        line: the columns that are always in one line with it.
    """
    is_beside = any(each.kind in (columns.ID, columns.WORKER) for each in line)
    return Column(
        shown.label.upper(),
        is_right=shown.kind in (columns.NUMBER, columns.AGE, columns.SECONDS),
        least=_LEAST_BESIDE if is_beside and shown.kind == columns.QUEUE else shown.least,
        usual=None if shown.usual is None else str(shown.usual),
    )


#: Kind of a column -> what a value is as text.
_TEXTS: dict[str, Callable[[Any, datetime], str]] = {
    columns.MOMENT: lambda value, now: _moment(value, now),
    columns.AGE: lambda value, now: "?" if value is None else span(max(0.0, (now - value).total_seconds())),
    columns.SECONDS: lambda value, now: "-" if value is None else span(value),
    columns.NUMBER: lambda value, now: "?" if value is None else str(value),
    columns.TEXT: lambda value, now: str(value),
    columns.ID: lambda value, now: str(value),
    columns.QUEUE: lambda value, now: str(value),
    columns.WORKER: lambda value, now: worker(value),
    columns.CALL: lambda value, now: call(value),
}


def _moment(value: Any, now: datetime) -> str:
    if value is None or isinstance(value, str):
        return value or "?"
    return when(value, now)


def worker(message: MessageInfo) -> str:
    """Name of a worker, or its host, and process."""
    return printed_worker(message.worker, message.host, message.pid, message.lost)
