"""What ends a poll from outside: another thread or greenlet, or a signal.

Python runs the signal handlers, and then resumes the poll that the signal has interrupted (PEP 475). So a
worker would notice SIGTERM only with the next event: on average, half of ``brpop_timeout`` later. Here,
Python writes a byte to a socket for each signal. The event loop reads the socket, and this is such an event.
"""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

# Stays open until the process ends, because Python keeps writing to it.
_pair: tuple[socket.socket, socket.socket] | None = None


#: Event loop -> the users that want signals to wake it.
_users: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()


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


def wake_on_signals(hub: Any, user: object) -> None:
    """Let signals wake the event loop *hub* until the last *user* calls :func:`stop_waking_on_signals`. Do
    nothing if other code already uses ``signal.set_wakeup_fd``.

    Arguments:
        hub: kombu's event loop.
        user: any object that identifies the user. Only a weak reference to it is kept.
    """
    if _pair is not None or _open():
        assert _pair is not None
        reader = _pair[0]
        _users.setdefault(hub, WeakSet()).add(user)
        hub.add_reader(reader, reader.recv, 4096)


def stop_waking_on_signals(hub: Any, user: object) -> None:
    """Stop what :func:`wake_on_signals` has begun for *user*."""
    users = _users.get(hub)
    if _pair is not None and users is not None:
        users.discard(user)
        if not users:
            hub.remove_reader(_pair[0])


def _open() -> bool:
    global _pair
    if threading.current_thread() is not threading.main_thread():
        return False  # Python allows it only in the main thread.
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    others = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if others != -1:
        signal.set_wakeup_fd(others)
        reader.close()
        writer.close()
        return False
    _pair = reader, writer
    return True
