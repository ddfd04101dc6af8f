"""How results are shown: tables and bars on a terminal, plain text elsewhere, JSON when asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from kombu_redisdelay.broker.printable import printable
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.operations.dead_letters import DeadLetter
from kombu_redisdelay.operations.delayed import DelayedMessage

#: What the numbers of a queue look like.
STYLES = {
    "ready": "yellow",
    "scheduled": "cyan",
    "overdue": "bold red",
    "unacked": "magenta",
    "dead": "red",
    "consumers": "green",
}

#: Wide enough for any line: nothing is cut that goes into a file or another program.
_UNLIMITED = 10_000


def console(*, stderr: bool = False) -> Console:
    no_color = getattr(click.get_current_context().obj, "no_color", False)
    found = Console(highlight=False, markup=False, emoji=False, no_color=no_color or None, stderr=stderr)
    if not found.is_terminal:
        found.width = _UNLIMITED
    return found


class _PrintableTable(Table):
    """A table whose cells are printable."""

    def add_row(self, *cells: str | Text) -> None:  # type: ignore[override]
        super().add_row(*(styled(cell) if isinstance(cell, str) else cell for cell in cells))


def styled(text: str, style: str = "") -> Text:
    """A text to be shown. Nothing else makes one: rich itself leaves most control characters in."""
    return Text(printable(text), style)


def table(*columns: Column) -> Table:
    """A table with headers, to be filled and then shown by :func:`show`."""
    return _PrintableTable(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))


def grid(*columns: Column) -> Table:
    """The same without headers."""
    return _PrintableTable(*columns, box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))


def right(header: str) -> Column:
    """A column of numbers."""
    return Column(header, justify="right", no_wrap=True)


def fixed(header: str) -> Column:
    """A column that is not cut."""
    return Column(header, no_wrap=True)


def flexible(header: str) -> Column:
    """A column of texts that may be :func:`cut`, when the table is too wide."""
    return Column(header, min_width=8)


def cut(text: str, style: str = "") -> Text:
    """A text of which the end may go, for want of room."""
    found = styled(text, style)
    found.no_wrap, found.overflow = True, "ellipsis"
    return found


def show(rows: Table) -> None:
    """Print a table, without blanks at the ends of lines where it is not a terminal."""
    target = console()
    if target.is_terminal:
        target.print(rows)
        return
    with target.capture() as capture:
        target.print(rows)
    for line in capture.get().splitlines():
        echo(line.rstrip())


def show_json(objects: Iterable[Any]) -> None:
    """Print each of *objects*, a dictionary or one of our dataclasses, as a line of JSON."""
    for item in objects:
        content = item if isinstance(item, dict) else asdict(item)
        # json escapes whatever is not ASCII, and control characters but for this one.
        echo(json.dumps(content, default=_json_value).replace("\x7f", "\\u007f"))


def show_fields(fields: Mapping[str, Any]) -> None:
    """Print one thing, a field a line."""
    rows = grid(Column(style="bold", no_wrap=True), Column(overflow="fold"))
    for name, value in fields.items():
        rows.add_row(f"{name} ", "-" if value is None else str(value))
    show(rows)


def show_outcome(done: Mapping[str, bool], what: str, as_json: bool) -> None:
    """Print what was done to which id; the exit status is 1 unless it was done to all of them."""
    if as_json:
        show_json({"id": id, what: was_done} for id, was_done in done.items())
    else:
        for id, was_done in done.items():
            echo(f"{id} {what}" if was_done else f"{id} not found", err=not was_done)
    if not all(done.values()):
        raise click.exceptions.Exit(1)


def call(message: DelayedMessage | DeadLetter) -> str:
    """A task with its arguments, on one line."""
    if message.task is None:
        return "-"
    # Both are what repr makes of them, perhaps shortened; in the case of `args`, of a tuple or a list.
    args = message.args[1:-1].rstrip(",")
    kwargs = f"**{message.kwargs}" if message.kwargs not in ("", "{}") else ""
    return f"{message.task}({', '.join(filter(None, (args, kwargs)))})"


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def progress() -> Progress:
    """A progress bar on standard error, which is nothing where that is no terminal."""
    target = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=target, transient=True, disable=not target.is_terminal)


def busy(what: str) -> AbstractContextManager[object]:
    """Shows on standard error that something is being done, of which it is not known how far it is."""
    target = console(stderr=True)
    return target.status(what) if target.is_terminal else nullcontext()


def count(number: int, style: str = "") -> Text:
    """A number of messages; a dim 0."""
    return styled(f"{number:,}", style if number else "dim")


def span(seconds: float) -> str:
    """A length of time in its two largest units: 850ms, 4.6s, 3m20s, 2h5m, 27d3h."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    rest = round(seconds)
    for (name, length), (next_name, next_length) in pairwise(
        (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
    ):
        if rest >= length:
            whole, below = divmod(rest, length)
            part = below // next_length
            return f"{whole}{name}{part}{next_name}" if part else f"{whole}{name}"
    return f"{rest}s"


def when(moment: datetime, now: datetime) -> str:
    """A moment, as seen from now."""
    seconds = (moment - now).total_seconds()
    return f"in {span(seconds)}" if seconds >= 0 else f"{span(-seconds)} ago"


def next_due(moment: datetime | None, now: datetime) -> Text:
    """When the next message is due, and for how long it has been."""
    if moment is None:
        return styled("-", "dim")
    seconds = (moment - now).total_seconds()
    return (
        styled(f"in {span(seconds)}") if seconds >= 0 else styled(f"{span(-seconds)} late", STYLES["overdue"])
    )
