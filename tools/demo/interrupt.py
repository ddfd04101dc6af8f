"""Ctrl-C and its kin, noticed only where nothing is half done."""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The user wants the demo to end."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.strsignal(signal_number))
        self.exit_status = 128 + signal_number


class Interrupt:
    """Remembers a signal until `check` is called.

    Python's own KeyboardInterrupt can strike between making a directory and noting that it has to be
    removed, or in the middle of the removal.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        for number in SIGNALS:
            signal.signal(number, self._remember)

    def check(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self._received is not None:
            raise Interrupted(self._received)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._received = number
