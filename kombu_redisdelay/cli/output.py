"""Shows results: as tables and bars on a terminal, as plain text elsewhere, and as JSON on request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import datetime
from itertools import islice, pairwise
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from kombu_redisdelay.broker.printable import printable
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.operations.dead_letters import DeadLetter
from kombu_redisdelay.operations.delayed import DelayedMessage
from kombu_redisdelay.operations.queued import QueuedMessage

ItemT = TypeVar("ItemT")

#: Number in the stats of a queue -> its style.
STYLES = {
    "ready": "yellow",
    "scheduled": "cyan",
    "overdue": "bold red",
    "unacked": "magenta",
    "dead": "red",
    "consumers": "green",
}

#: The largest number of rows in one table. The width of a column is only known after all rows were read.
PAGE = 1000

#: Wide enough for any line: text for a file or another program must not be cut.
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
    """Return a text for rich, without control characters. Every text is made here, because rich itself keeps
    most control characters."""
    return Text(printable(text), style)


def table(*columns: Column) -> Table:
    """Return an empty table with headers. :func:`show` prints it."""
    return _PrintableTable(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))


def grid(*columns: Column) -> Table:
    """Return an empty table without headers."""
    return _PrintableTable(*columns, box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))


def right(header: str) -> Column:
    """A column of numbers."""
    return Column(header, justify="right", no_wrap=True)


def fixed(header: str) -> Column:
    """A column that is not cut."""
    return Column(header, no_wrap=True)


def flexible(header: str) -> Column:
    """A column of texts that may be cut if the table is too wide, see :func:`cut`."""
    return Column(header, min_width=8)


def cut(text: str, style: str = "") -> Text:
    """Return a text whose end may be cut off if there is not enough room."""
    found = styled(text, style)
    found.no_wrap, found.overflow = True, "ellipsis"
    return found


def show(rows: Table) -> None:
    """Print a table. If the output is not a terminal, remove blanks at the ends of lines."""
    target = console()
    if target.is_terminal:
        target.print(rows)
        return
    with target.capture() as capture:
        target.print(rows)
    for line in capture.get().splitlines():
        echo(line.rstrip())


def show_pages(items: Iterable[ItemT], page: Callable[[Sequence[ItemT]], Table]) -> bool:
    """Print the tables that *page* makes of the *items*, :data:`PAGE` of them each. Returns whether there is
    any item."""
    rest = iter(items)
    any_item = False
    while some := list(islice(rest, PAGE)):
        any_item = True
        show(page(some))
    return any_item


def show_json(objects: Iterable[Any]) -> None:
    """Print each of *objects*, a dictionary or one of our dataclasses, as a line of JSON."""
    for item in objects:
        content = item if isinstance(item, dict) else asdict(item)
        # json escapes everything that is not ASCII, and all control characters except this one.
        echo(json.dumps(content, default=_json_value).replace("\x7f", "\\u007f"))


def show_fields(fields: Mapping[str, Any]) -> None:
    """Print the fields of one object, one on each line."""
    rows = grid(Column(style="bold", no_wrap=True), Column(overflow="fold"))
    for name, value in fields.items():
        rows.add_row(f"{name} ", "-" if value is None else str(value))
    show(rows)


def show_done(queues: Iterable[str], what: str, as_json: bool) -> None:
    """Print for each queue what was done to it, for example ``"paused"``."""
    if as_json:
        show_json({"queue": queue, what: True} for queue in queues)
    else:
        for queue in queues:
            echo(f"{queue} {what}")


def without_payload(message: QueuedMessage) -> dict[str, Any]:
    """The fields of a message for :func:`show_json`, but for its bytes."""
    fields = asdict(message)
    del fields["payload"]
    return fields


def call(message: DelayedMessage | QueuedMessage | DeadLetter) -> str:
    """A task with its arguments, on one line."""
    if message.task is None:
        return "-"
    # Both are the output of repr, perhaps shortened. `args` is a tuple or a list.
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
    """Return a progress bar on standard error. If that is not a terminal, the bar shows nothing."""
    target = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=target, transient=True, disable=not target.is_terminal)


def busy(what: str) -> AbstractContextManager[object]:
    """Show on standard error that work of unknown length is going on. If that is not a terminal, show
    nothing."""
    target = console(stderr=True)
    return target.status(what) if target.is_terminal else nullcontext()


def count(number: int, style: str = "") -> Text:
    """Return a number of messages as text. A 0 is dim."""
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
    """Return the distance of *moment* from *now*, such as ``in 5m`` or ``5m ago``."""
    seconds = (moment - now).total_seconds()
    return f"in {span(seconds)}" if seconds >= 0 else f"{span(-seconds)} ago"


def waiting(seconds: float | None) -> Text:
    """Return for how long the next ready message has waited; ``?`` if that is unknown."""
    return styled("?" if seconds is None else span(seconds) if seconds else "-", "" if seconds else "dim")


def next_due(moment: datetime | None, now: datetime) -> Text:
    """Return when the next message is due, such as ``in 5m``, or how late it is, such as ``5m late``."""
    if moment is None:
        return styled("-", "dim")
    seconds = (moment - now).total_seconds()
    return (
        styled(f"in {span(seconds)}") if seconds >= 0 else styled(f"{span(-seconds)} late", STYLES["overdue"])
    )
