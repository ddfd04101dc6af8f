"""The terminal: what is shown on it, with rich, and the keys that are pressed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from select import select

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


try:
    import termios
    import tty
except ImportError:
    # Not a Unix system.
    pass


@contextmanager
def key_presses() -> Iterator[Callable[[float], bytes] | None]:
    """Within the block, each key is read at once, and is not shown.

    Yields:
        a function that waits for a number of seconds, and returns early with what was typed; ``None`` if
        standard input is not a terminal, or no Unix system has it.
    """
    if "termios" not in sys.modules or not sys.stdin.isatty():
        yield None
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def read(seconds: float) -> bytes:
        ready, _, _ = select([keyboard], [], [], seconds)
        return os.read(keyboard, 1024) if ready else b""

    try:
        tty.setcbreak(keyboard)
        yield read
    finally:
        termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)
