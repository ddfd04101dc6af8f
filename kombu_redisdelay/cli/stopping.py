"""Ends a long operation in good order when somebody presses Ctrl-C, or closes the terminal."""

from __future__ import annotations

import atexit
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import Any

#: The exit status of a command that was stopped so. Shells show it for a tool that Ctrl-C has ended.
STOPPED = 128 + signal.SIGINT


#: Signals that come so soon after the first one are the same wish, in seconds: some tools, and people who are
#: in a hurry, send two.
AGAIN = 1.0


@contextmanager
def stopping() -> Iterator[Event]:
    """In the block, Ctrl-C, SIGTERM and SIGHUP set the event that it gets. One that comes more than a second
    later ends the command as ever, also behind the block, where the command says what it has done. A signal
    that is ignored, as ``nohup`` has it, still is, and Windows has no SIGHUP."""
    stop, stopped_at = Event(), 0.0
    numbers = [each for each in signal.Signals if each.name in ("SIGINT", "SIGTERM", "SIGHUP")]
    before = {each: handler for each in numbers if (handler := signal.getsignal(each)) != signal.SIG_IGN}

    def set_all(handlers: Mapping[signal.Signals, Any]) -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def stopped(number: int, _: object) -> None:
        nonlocal stopped_at
        if not stopped_at:
            stopped_at = monotonic()
            # This thread may have the lock of the event, because it is about to wait for it.
            Thread(target=stop.set).start()
            # Python gives up its handlers before the process has ended: a signal would end it with another
            # status.
            atexit.register(set_all, dict.fromkeys(before, signal.SIG_IGN))
        elif monotonic() > stopped_at + AGAIN:
            set_all(before)
            signal.raise_signal(number)

    set_all(dict.fromkeys(before, stopped))
    try:
        yield stop
    finally:
        if not stopped_at:
            set_all(before)
