"""Ends a poll from another thread or greenlet."""

from __future__ import annotations

import socket
from contextlib import suppress


class Waker:
    """A socket that can be read after :meth:`wake`, until :meth:`clear`. Any number of calls cost one write
    and one read.

    Attributes:
        fd: what to poll.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        # So that greenlets do not switch here either.
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.fd = self._reader.fileno()
        self._is_set = False

    def wake(self) -> None:
        """Any thread may call this, also when the waker is closed."""
        if not self._is_set:
            self._is_set = True
            with suppress(OSError):
                self._writer.send(b"\0")

    def clear(self) -> None:
        """To be called before looking at what may have changed: a change after that wakes again."""
        if self._is_set:
            # First: a thread that sets it from now on also writes.
            self._is_set = False
            with suppress(OSError):
                self._reader.recv(64)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
