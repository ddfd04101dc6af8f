"""Ends a long operation in good order when somebody presses Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

#: The exit status of a command that was stopped so. Shells show it for a tool that Ctrl-C has ended.
STOPPED = 128 + signal.SIGINT


@contextmanager
def stopping() -> Iterator[Event]:
    """In the block, Ctrl-C and SIGTERM set the event that it gets. The next one ends the command as ever."""
    stop = Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def as_before() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stopped(*_: object) -> None:
        stop.set()
        as_before()

    for number in before:
        signal.signal(number, stopped)
    try:
        yield stop
    finally:
        as_before()
