"""The columns of the table of queues, and how a table is sorted by one of its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from kombu_redisdelay.operations.access import natural
from kombu_redisdelay.operations.columns import QUEUE_COLUMNS, TEXT, QueueColumn
from kombu_redisdelay.operations.history import Counts
from kombu_redisdelay.operations.stats import QueueStats

RowT = TypeVar("RowT")

#: A queue, and what has happened in it in the last hour.
Row = tuple[QueueStats, Counts]


@dataclass(frozen=True, slots=True)
class Column:
    """A column to sort by.

    Attributes:
        name: how addresses name it.
        label: how the page names it.
        value: that of a row; ``None`` if it has none or it is unknown. Such rows always come last.
        largest_first: whether it is of more use with the largest value first.
        figure: that of the stats of a queue; ``None`` if the column is another one.
        is_history: whether the value is of the history of a queue.
        is_rare: whether the column is left out where all numbers are 0.
    """

    name: str
    label: str
    value: Callable[[Any], Any]
    largest_first: bool = True
    figure: QueueColumn | None = None
    is_history: bool = False
    is_rare: bool = False


def _of_figure(name: str, figure: QueueColumn) -> Column:
    smallest_first = name in ("consumers", "due")
    return Column(
        *(name, figure.label, lambda row: figure.value(row[0]), not smallest_first, figure),
        is_rare=figure.is_rare,
    )


def _of_history(name: str, label: str, value: Callable[[Counts], int]) -> Column:
    return Column(name, label, lambda row: value(row[1]), is_history=True)


COLUMNS = (
    Column("queue", "Queue", lambda row: natural(row[0].queue), largest_first=False),
    *(_of_figure(name, figure) for name, figure in QUEUE_COLUMNS.items() if figure.kind != TEXT),
    _of_history("published", "Published, last hour", attrgetter("published")),
    _of_history("delivered", "Delivered", attrgetter("delivered")),
    _of_history("failures", "Failed deliveries", attrgetter("failures")),
)


@dataclass(frozen=True, slots=True)
class Sorting:
    """How a table is sorted.

    Attributes:
        columns: by what it can be sorted: first by the names of its rows.
        usual: the field of the address for the order that it has if nothing is said.
        column: by what it is sorted.
        largest_first: whether the largest value comes first.
    """

    columns: Sequence[Column]
    usual: str
    column: Column
    largest_first: bool

    @property
    def field(self) -> str:
        """The field of the address that sorts in this way; empty for the usual order."""
        field = f"{'-' if self.largest_first else ''}{self.column.name}"
        return "" if field == self.usual else field

    @classmethod
    def of(cls, text: str, columns: Sequence[Column] = COLUMNS, usual: str = COLUMNS[0].name) -> Sorting:
        """What the field of an address says: the name of a column, and before it ``-`` for the largest value
        first. Anything else is the usual order."""
        named = {column.name: column for column in columns}
        field = text if text.removeprefix("-") in named else usual
        return cls(columns, usual, named[field.removeprefix("-")], field.startswith("-"))

    def by(self, column: Column) -> str:
        """The field of the address that sorts by *column*; in the other order if it is sorted by that."""
        largest_first = not self.largest_first if column == self.column else column.largest_first
        return f"-{column.name}" if largest_first else column.name

    def aria(self, column: Column) -> str:
        """The attribute ``aria-sort`` of the heading of *column*; empty if it is not sorted by that."""
        if column != self.column:
            return ""
        return "descending" if self.largest_first else "ascending"

    def sort(self, rows: Iterable[RowT]) -> list[RowT]:
        """*rows* in this order. Those with the same value are sorted by name."""
        by_name = sorted(rows, key=self.columns[0].value)
        known = [row for row in by_name if self.column.value(row) is not None]
        unknown = [row for row in by_name if self.column.value(row) is None]
        return sorted(known, key=self.column.value, reverse=self.largest_first) + unknown
