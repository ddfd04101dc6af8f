"""Reads single keys from a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from select import select
from time import sleep

try:
    import termios
    import tty
except ImportError:
    # Not a Unix system.
    pass


@contextmanager
def key_presses() -> Iterator[Callable[[float], bytes]]:
    """Within the block, each key is read at once, and is not shown.

    Yields:
        a function that waits for a number of seconds, and returns early with what was typed. If standard
        input is not a terminal, it only waits.
    """
    if "termios" not in sys.modules or not sys.stdin.isatty():
        yield _wait
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


def _wait(seconds: float) -> bytes:
    sleep(seconds)
    return b""
