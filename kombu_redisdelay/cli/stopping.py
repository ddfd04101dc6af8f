"""Ends a long operation in good order when somebody presses Ctrl-C, or closes the terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

#: The exit status of a command that was stopped so. Shells show it for a tool that Ctrl-C has ended.
STOPPED = 128 + signal.SIGINT


@contextmanager
def stopping() -> Iterator[Event]:
    """In the block, Ctrl-C, SIGTERM and SIGHUP set the event that it gets. The next one ends the command as
    ever. A signal that is ignored, as ``nohup`` has it, still is."""
    stop = Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: handler for each in numbers if (handler := signal.getsignal(each)) != signal.SIG_IGN}

    def as_before() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stopped(*_: object) -> None:
        # This thread may have the lock of the event, because it is about to wait for it.
        Thread(target=stop.set).start()
        as_before()

    for number in before:
        signal.signal(number, stopped)
    try:
        yield stop
    finally:
        as_before()
