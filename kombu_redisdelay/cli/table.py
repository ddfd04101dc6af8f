"""Tables as plain data, and where the columns go."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from textwrap import wrap
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from kombu_redisdelay.words import printable

#: The least width of a column whose cells are wrapped.
_LEAST_WRAPPED = 20

#: More than any width.
_ANY = sys.maxsize

#: Where nothing is cut, a column whose cells may be cut elsewhere gets at most this room. A longer cell,
#: such as an id that a user has set, pushes the rest of its own row, and not that of all rows.
_MOST = 60


class Cell(NamedTuple):
    """A text, and how a terminal shows it: a style of rich, such as ``bold red``."""

    text: str
    style: str = ""


#: The cells of a row. Those without a style have that of their column.
Row = Sequence["str | Cell"]


@dataclass(frozen=True)
class Column:
    """
    Attributes:
        header: what stands above it.
        is_right: whether its cells are aligned to the right.
        least: where a table is too wide, to how many columns of the terminal a cell may be cut. ``None``: it
            is never cut.
        wraps: whether a cell that is too wide goes on in the next line, instead of being cut.
        style: that of all its cells.
        usual: if all its cells on the first page have this text, the column is left out. ``None``: never.
    """

    header: str = ""
    is_right: bool = False
    least: int | None = None
    wraps: bool = False
    style: str = ""
    usual: str | None = None


@dataclass
class Table:
    """
    Attributes:
        gap: blanks between two columns.
        below: where a table is too wide, how many columns at its end go into a second line of each row,
            which is left out where they are empty.
    """

    columns: Sequence[Column]
    gap: int = 2
    below: int = 0
    rows: list[Row] = field(default_factory=list)

    def add_row(self, *cells: str | Cell) -> None:
        self.rows.append(cells)


#: What a line is made of, from left to right. Its texts are printable.
Line = list[Cell]


class Layout:
    """Where the columns of a table go. It stays the same for all pages of a long table: what is wider on a
    later page is cut like the others, or pushes what follows.

    Arguments:
        table: the first page.
        width: the columns of the terminal. ``None``: nothing is cut.
    """

    def __init__(self, table: Table, width: int | None = None) -> None:
        self._columns = table.columns
        self._gap = table.gap
        self._is_limited = width is not None
        self._widths = [len(column.header) for column in table.columns]
        for row in table.rows:
            self._widths = [
                max(known, _width(_text(cell))) for known, cell in zip(self._widths, row, strict=True)
            ]
        every = [index for index in range(len(table.columns)) if not _is_usual(table, index)]
        self._parts: list[Sequence[int]] = [every]
        self._indent = 0
        if width is None:
            self._widths = [
                has if column.least is None else min(has, _MOST)
                for has, column in zip(self._widths, self._columns, strict=True)
            ]
            return
        least = [min(has, _least(column)) for has, column in zip(self._widths, self._columns, strict=True)]
        # Of those at the end, some may be left out.
        first_below = len(table.columns) - table.below
        below = [index for index in every if index >= first_below]
        if below and sum(least[index] for index in every) + self._gap * (len(every) - 1) > width:
            self._parts = [every[: -len(below)], below]
        self._fit(self._parts[0], least, width)
        if len(self._parts) > 1:
            self._indent = min(self._widths[0] + self._gap, width // 4)
            self._fit(self._parts[1], least, width - self._indent)

    def header(self) -> Iterator[Line]:
        """The line with the headers, or both; none if no column has one."""
        headers = [Cell(column.header, "bold") for column in self._columns]
        if any(column.header for column in self._columns):
            yield from self._row(headers)

    def lines(self, rows: Iterable[Row]) -> Iterator[Line]:
        """Each row as a line, or as more where it has not enough room."""
        for row in rows:
            yield from self._row(row)

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """Each row as a line where nothing is cut, without styles. Takes a third of the time."""
        blanks = " " * self._gap
        [part] = self._parts
        sides = [(index, self._widths[index], self._columns[index].is_right) for index in part]
        for row in rows:
            cells = [_padded(_text(row[index]), width, is_right) for index, width, is_right in sides]
            yield blanks.join(cells).rstrip()

    def _fit(self, part: Sequence[int], least: Sequence[int], room: int) -> None:
        """Narrow the widest column, again and again, until all have room. If there is room left, the last
        column gets it, because a later page may need it; not one of numbers, which would move away from the
        others."""
        widths = self._widths
        left = room - self._gap * (len(part) - 1) - sum(widths[index] for index in part)
        while left < 0:
            spare = [index for index in part if widths[index] > least[index]]
            if not spare:
                return
            widths[max(spare, key=widths.__getitem__)] -= 1
            left += 1
        if not self._columns[part[-1]].is_right:
            widths[part[-1]] += left

    def _row(self, row: Row) -> Iterator[Line]:
        for number, part in enumerate(self._parts):
            shown = [self._shown(row[index], index) for index in part]
            if number and not any(text for cells in shown for text, _ in cells):
                continue
            for some in zip_longest(*shown, fillvalue=Cell("")):
                yield self._line(part, some, self._indent if number else 0)

    def _shown(self, cell: str | Cell, index: int) -> Sequence[Cell]:
        """The cell, cut if need be, or the lines that it is wrapped into."""
        column, width, text = self._columns[index], self._widths[index], _text(cell)
        style = column.style if isinstance(cell, str) else cell.style
        if self._is_limited and _width(text) > width:
            if column.wraps:
                return [Cell(line, style) for line in _wrapped(text, width)]
            if column.least is not None:
                text = f"{_begin(text, width - 1)}…"
        return (Cell(text, style),)

    def _line(self, part: Sequence[int], cells: Sequence[Cell], indent: int) -> Line:
        line = [Cell(" " * indent)]
        for index, (text, style) in zip(part, cells, strict=True):
            is_right = self._columns[index].is_right
            # No blanks at the end of a line.
            width = 0 if index == part[-1] and not is_right else self._widths[index]
            line += [Cell(_padded(text, width, is_right), style), Cell(" " * self._gap)]
        return line[:-1]


def _least(column: Column) -> int:
    """How narrow a column may become, if it is not narrow anyway."""
    if column.wraps:
        return _LEAST_WRAPPED
    return _ANY if column.least is None else max(column.least, len(column.header))


def _is_usual(table: Table, index: int) -> bool:
    usual = table.columns[index].usual
    return usual is not None and all(_text(row[index]) == usual for row in table.rows)


def _text(cell: str | Cell) -> str:
    return printable(cell if isinstance(cell, str) else cell.text)


def _padded(text: str, width: int, is_right: bool) -> str:
    """*text* with blanks, so that it has at least that many columns."""
    if not text.isascii():
        # str pads to a number of characters.
        width -= _width(text) - len(text)
    return text.rjust(width) if is_right else text.ljust(width)


def _width(text: str) -> int:
    """The columns that a terminal needs for *text*, which is printable."""
    return len(text) if text.isascii() else sum(map(_width_of, text))


def _width_of(character: str) -> int:
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def _begin(text: str, width: int) -> str:
    """As much of *text* as *width* columns have room for."""
    if text.isascii():
        return text[:width]
    room = width
    for position, character in enumerate(text):
        room -= _width_of(character)
        if room < 0:
            return text[:position]
    return text


def _wrapped(text: str, width: int) -> list[str]:
    if text.isascii():
        return wrap(text, width, break_on_hyphens=False) or [""]
    lines = []
    while text:
        line = _begin(text, width) or text[0]
        lines.append(line)
        text = text[len(line) :]
    return lines or [""]
