"""How tasks tell the measuring process what happened when: datagrams over a Unix socket."""

from __future__ import annotations

import json
import os
import socket
from functools import cache
from pathlib import Path
from typing import Any


class Postbox:
    """Receives what `post` sends. A sender waits while more than a few letters are unread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def receive(self, timeout: float) -> tuple[str, Any]:
        """The next letter: what it is about, and what it says.

        Raises:
            TimeoutError: there is none within *timeout* seconds.
        """
        self._socket.settimeout(timeout)
        subject, content = json.loads(self._socket.recv(65536))
        return subject, content

    def wait(self, subject: str, timeout: float) -> Any:
        """What the next letter about *subject* says; others before it are dropped."""
        while True:
            received, content = self.receive(timeout)
            if received == subject:
                return content

    def close(self) -> None:
        self._socket.close()


def post(path: str, subject: str, content: Any) -> None:
    """Send a letter to the postbox at *path*."""
    _sender(os.getpid()).sendto(json.dumps([subject, content]).encode(), path)


@cache
def _sender(pid: int) -> socket.socket:
    """One for each process: a forked child must not use its parent's."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
