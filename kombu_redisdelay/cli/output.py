"""Shows results: as tables and bars on a terminal, as plain text elsewhere, and as JSON on request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from kombu_redisdelay.cli.echo import echo, echo_all
from kombu_redisdelay.cli.table import Cell, Column, Layout, Table
from kombu_redisdelay.operations.message import ALL, MessageInfo, with_arguments
from kombu_redisdelay.operations.viewers import BROKER_ERRORS
from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.words import when

if TYPE_CHECKING:
    from rich.console import Console

ItemT = TypeVar("ItemT")

#: What is printed at once: this number of items, or those that are there this number of seconds after the
#: first one.
PAGE = 1000
PAGE_SECONDS = 0.3


def terminal(*, stderr: bool = False) -> Console | None:
    """Standard output, or standard error, if it is a terminal and rich is installed."""
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty() and "FORCE_COLOR" not in os.environ:
        return None
    try:
        from kombu_redisdelay.cli.terminal import console
    except ModuleNotFoundError:
        return None
    found = console(stderr=stderr)
    return found if found.is_terminal else None


def table(*columns: Column, gap: int = 2, below: int = 0) -> Table:
    """Return an empty table. :func:`show` prints it."""
    return Table(columns, gap, below)


def right(header: str) -> Column:
    """A column of numbers."""
    return Column(header, is_right=True)


def unusual(header: str, usual: str) -> Column:
    """A column of numbers that is left out if none on the first page is different from *usual*."""
    return Column(header, is_right=True, usual=usual)


def fixed(header: str) -> Column:
    """A column that is not cut."""
    return Column(header)


def flexible(header: str, least: int = 8) -> Column:
    """A column of texts that may be cut if the table is too wide.

    Arguments:
        least: the columns of the terminal that it needs.
    """
    return Column(header, least=least)


def cut(text: str, style: str = "") -> Cell:
    """Return a text for a :func:`flexible` column."""
    return Cell(text, style)


def count(number: int, style: str = "") -> Cell:
    """Return a number of messages as text. A 0 is dim."""
    return Cell(f"{number:,}", style if number else "dim")


def show(rows: Table) -> None:
    """Print a table."""
    _show_all([rows])


def show_pages(items: Iterable[ItemT], page: Callable[[Sequence[ItemT]], Table]) -> bool:
    """Print the tables that *page* makes of the *items* as one, while they are read. Returns whether there is
    any item."""
    return _show_all(map(page, _pages(items)))


def _show_all(tables: Iterable[Table]) -> bool:
    """Print *tables* as one: the first one says where the columns go. Returns whether there is any."""
    target = terminal()
    layout = None
    for rows in tables:
        is_first, layout = layout is None, layout or Layout(rows, target.width if target else None)
        if target is None:
            header = ["".join(text for text, _ in line).rstrip() for line in layout.header()]
            echo_all([*(header if is_first else ()), *layout.texts(rows.rows)])
        else:
            from kombu_redisdelay.cli.terminal import colored

            target.print(colored([*(layout.header() if is_first else ()), *layout.lines(rows.rows)]))
    return layout is not None


def _pages(items: Iterable[ItemT]) -> Iterator[list[ItemT]]:
    """Divide *items* into pages. If reading them takes long, a page is shown before it is full."""
    page: list[ItemT] = []
    end = 0.0
    for item in items:
        if not page:
            end = monotonic() + PAGE_SECONDS
        page.append(item)
        if len(page) >= PAGE or monotonic() >= end:
            yield page
            page = []
    if page:
        yield page


def show_json(objects: Iterable[Any]) -> bool:
    """Print each of *objects*, a dictionary or one of our dataclasses, as a line of JSON. Returns whether
    there is any."""
    is_any = False
    for page in _pages(objects):
        is_any = True
        # json escapes everything that is not ASCII, and all control characters except this one.
        echo_all([_to_json(item).replace("\x7f", "\\u007f") for item in page])
    return is_any


def _json_value(value: Any) -> Any:
    if is_dataclass(value):
        return {name: getattr(value, name) for name in _names(value.__class__)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


_encode = json.JSONEncoder(default=_json_value, allow_nan=False).encode
_encode_all = json.JSONEncoder(default=_json_value).encode


def _to_json(item: Any) -> str:
    """JSON of *item*. Numbers that JSON does not have, as in the arguments of a task, are the texts "NaN",
    "Infinity" and "-Infinity"."""
    try:
        return _encode(item)
    except ValueError:
        return _encode(json.loads(_encode_all(item), parse_constant=str))


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """The names of the fields of a dataclass."""
    return tuple(field.name for field in fields(kind))


def show_fields(fields: Mapping[str, Any]) -> None:
    """Print the fields of one object, one on each line. A value that is a list has a line for each."""
    rows = table(Column(style="bold"), Column(wraps=True))
    for name, value in fields.items():
        for number, each in enumerate(value if isinstance(value, list) else [value]):
            rows.add_row("" if number else name, "-" if each is None else str(each))
    show(rows)


def show_lines(lines: Iterable[str], otherwise: str) -> None:
    """Print *lines*. If there are none, print *otherwise* on standard error."""
    found = list(lines)
    echo_all(found)
    if not found:
        echo(otherwise, err=True)


def fields_of(message: MessageInfo, arguments: str) -> dict[str, Any]:
    """The fields of a message for :func:`show_json`, except its bytes.

    Arguments:
        arguments: what to show of its arguments. Only all of them are decoded.
    """
    shown = message if arguments == ALL else with_arguments(message, arguments)
    fields = {name: getattr(shown, name) for name in _names(MessageInfo) if name != "payload"}
    if arguments == ALL:
        decoded = message.arguments()
        fields["arguments"] = decoded and {"args": decoded[0], "kwargs": decoded[1]}
    return fields


class Bar(Protocol):
    """A progress bar, which a ``with`` block shows."""

    def add_task(self, description: str, *, total: float | None) -> Any: ...
    def advance(self, task_id: Any) -> None: ...


@contextmanager
def counting(what: str, total: float | None, *, is_one: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar as :func:`progress` does, in a ``with`` block, which gets a function to call with
    how many are done so far.

    Arguments:
        total: how many there are; ``None`` if that is unknown.
        is_one: whether it is done to one message, in one step.
    """
    with progress() as bar:
        task, before = bar.add_task(what, total=total), 0

        def show(done: int) -> None:
            nonlocal before
            for _ in range(done - before):
                bar.advance(task)
            before = done

        try:
            yield show
        except (KeyboardInterrupt, *BROKER_ERRORS) as exc:
            if before or not is_one:
                # The step that it was in may have been done, too.
                said = f"Stopped: {before:,} are done, or a few more. Run it again for the rest."
            elif refusal_of(exc):
                said = "Nothing was done."
            else:
                said = "Stopped: it may be done, or not. Run it again."
            echo(said, err=True)
            raise


class _NoBar:
    def add_task(self, description: str, *, total: float | None) -> Any:
        return None

    def advance(self, task_id: Any) -> None:
        pass


def progress() -> AbstractContextManager[Bar]:
    """Return a progress bar on standard error. If that is not a terminal, the bar shows nothing."""
    target = terminal(stderr=True)
    if target is None:
        return nullcontext(_NoBar())
    from kombu_redisdelay.cli.terminal import progress

    return progress(target)


def busy(what: str) -> AbstractContextManager[object]:
    """Show on standard error that work of unknown length is going on. If that is not a terminal, show
    nothing."""
    target = terminal(stderr=True)
    return nullcontext() if target is None else target.status(what)


def date_and_time(moment: datetime, now: datetime) -> str:
    """Return *moment* in the app's time zone, and its distance from *now*."""
    local = moment.astimezone(click.get_current_context().obj.app.timezone)
    return f"{local.isoformat(' ', 'seconds')} ({when(moment, now)})"
