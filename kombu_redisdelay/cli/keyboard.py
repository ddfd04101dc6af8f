"""Reads single keys from a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from select import select
from time import monotonic, sleep

try:
    import termios
    import tty
except ImportError:
    # Not a Unix system.
    pass

#: Seconds. A signal that comes just before select() does not end it: Python handles it when that returns.
_LONGEST_WAIT = 0.5


@contextmanager
def key_presses() -> Iterator[Callable[[float], bytes]]:
    """Within the block, each key is read at once, and is not shown.

    Yields:
        a function that waits for so many seconds, and returns early with what was typed. If standard input is
        not a terminal, it only waits.
    """
    if "termios" not in sys.modules or not sys.stdin.isatty():
        yield _wait
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def read(seconds: float) -> bytes:
        deadline = monotonic() + seconds
        while (rest := deadline - monotonic()) > 0:
            ready, _, _ = select([keyboard], [], [], min(rest, _LONGEST_WAIT))
            if ready:
                return os.read(keyboard, 1024)
        return b""

    try:
        tty.setcbreak(keyboard)
        yield read
    finally:
        termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)


def _wait(seconds: float) -> bytes:
    sleep(seconds)
    return b""
