"""Serves HTTP to programs, such as Prometheus and Kubernetes. Clients that are silent, or too many, cannot
block it."""

from __future__ import annotations

import socket
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore
from typing import Any

#: Seconds that a client may be silent.
PATIENCE = 5.0

#: Connections that are served at a time. For one beyond these, the oldest that has not asked yet is closed.
MOST_CONNECTIONS = 20

#: Seconds that a connection beyond these waits until the other one has ended.
GRACE = 0.5


class BoundedThreads(ThreadingMixIn):
    """For a server of the standard library: a thread for each request, up to a limit."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._free = BoundedSemaphore(MOST_CONNECTIONS)
        #: The connections over which nothing was asked yet, the oldest first.
        self._silent: dict[Any, None] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False) or self._has_made_room():
            self._silent[request] = None
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)  # type: ignore[attr-defined]

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._free.release()

    def has_asked(self, request: Any) -> None:
        """Note that this connection has sent a whole request. Its handler calls this."""
        self._silent.pop(request, None)

    def _has_made_room(self) -> bool:
        oldest = next(iter(list(self._silent)), None)
        if oldest is None:
            return False
        self.has_asked(oldest)
        with suppress(OSError):
            # Its thread then reads the end of the connection.
            oldest.shutdown(socket.SHUT_RDWR)
        return self._free.acquire(timeout=GRACE)

    def handle_error(self, *args: Any) -> None:
        """Say nothing of a client that has gone away."""


class QuietHandler(BaseHTTPRequestHandler):
    """Handles the requests of a server with :class:`BoundedThreads`."""

    server: BoundedThreads  # type: ignore[assignment]
    timeout = PATIENCE

    def parse_request(self) -> bool:
        is_right = super().parse_request()
        self.server.has_asked(self.connection)
        return is_right

    def log_message(self, *args: Any) -> None:
        """Log nothing: it is asked every few seconds."""


def socket_address(address: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """The family of an *address*, for example of ``::``, and where to listen.

    Raises:
        OSError: there is no such address.
    """
    family, *_, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, where
