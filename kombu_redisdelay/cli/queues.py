"""The figures of queues in tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from kombu_redisdelay.cli.output import count, right, unusual
from kombu_redisdelay.cli.table import Cell, Column
from kombu_redisdelay.operations.queue_columns import AGE, LATE, MOMENT, NUMBER, TEXT, QueueColumn
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.words import span


def heading(column: QueueColumn) -> Column:
    label = column.label.upper()
    if column.is_rare:
        return unusual(label, usual="0")
    return unusual(label, usual="") if column.kind == TEXT else right(label)


def figure(column: QueueColumn, queue: QueueStats, now: datetime) -> Any:
    """The cell of *queue* in *column*."""
    return _CELLS[column.kind](column, column.value(queue), now)


def age(seconds: float | None) -> Cell:
    """For how long something has waited; ``?`` if that is unknown."""
    return Cell("?" if seconds is None else span(seconds) if seconds else "-", "" if seconds else "dim")


def _moment(moment: datetime | None, now: datetime) -> Cell:
    """Such as ``in 5m``, or ``5m late``."""
    if moment is None:
        return Cell("-", "dim")
    seconds = (moment - now).total_seconds()
    return Cell(f"in {span(seconds)}") if seconds >= 0 else Cell(f"{span(-seconds)} late", LATE)


#: Kind of a column -> makes the cell of a value.
_CELLS: Mapping[str, Callable[[QueueColumn, Any, datetime], Any]] = {
    NUMBER: lambda column, value, now: count(value, column.style),
    AGE: lambda column, value, now: age(value),
    MOMENT: lambda column, value, now: _moment(value, now),
    TEXT: lambda column, value, now: value or "",
}
