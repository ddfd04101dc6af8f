"""Lets a signal end the event loop's wait.

Python runs signal handlers and then resumes the poll that the signal interrupted (PEP 475), so that a
worker notices SIGTERM when something else happens: on average half of ``brpop_timeout`` later. A byte on
a socket that the loop reads is something else happening.
"""

from __future__ import annotations

import signal
import socket
import threading
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

# Open for as long as the process: Python goes on writing to it.
_pair: tuple[socket.socket, socket.socket] | None = None


#: Event loop -> who wants it to wake.
_users: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()


def wake_on_signals(hub: Any, user: object) -> None:
    """Have signals wake *hub*, kombu's event loop, as long as a *user* wants that, unless somebody else uses
    what Python has for it."""
    if _pair is not None or _open():
        assert _pair is not None
        reader = _pair[0]
        _users.setdefault(hub, WeakSet()).add(user)
        hub.add_reader(reader, reader.recv, 4096)


def stop_waking_on_signals(hub: Any, user: object) -> None:
    """The *user* has no use for it any more."""
    users = _users.get(hub)
    if _pair is not None and users is not None:
        users.discard(user)
        if not users:
            hub.remove_reader(_pair[0])


def _open() -> bool:
    global _pair
    if threading.current_thread() is not threading.main_thread():
        return False  # Python allows it to the main thread only.
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
