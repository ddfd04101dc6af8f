"""Reads single keys from a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from select import select

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
