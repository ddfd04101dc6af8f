"""Shows things on a terminal, with rich. It is imported where rich is needed, which need not be installed."""

from __future__ import annotations

from collections.abc import Iterable

import click
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from kombu_redisdelay.cli.table import Line


def console(*, stderr: bool = False) -> Console:
    no_color = getattr(click.get_current_context().obj, "no_color", False)
    return Console(highlight=False, markup=False, emoji=False, no_color=no_color or None, stderr=stderr)


def colored(lines: Iterable[Line]) -> Group:
    """The lines of a table for rich, which cuts them where the terminal ends. Their texts are printable."""
    return Group(*(Text.assemble(*line, no_wrap=True, overflow="ellipsis") for line in lines))


def progress(target: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=target, transient=True)
