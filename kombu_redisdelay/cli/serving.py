"""Answers over HTTP to programs, such as Prometheus and Kubernetes. A client that is silent, or too many of
them, cannot keep it busy."""

from __future__ import annotations

import socket
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore
from typing import Any

#: Seconds that a client may be silent.
PATIENCE = 5.0

#: Requests that are answered at a time. A connection beyond these is closed.
MOST_REQUESTS = 20


class BoundedThreads(ThreadingMixIn):
    """For a server of the standard library: a thread for each request, but not for any number of them."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = MOST_REQUESTS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._free = BoundedSemaphore(MOST_REQUESTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)  # type: ignore[attr-defined]

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, *args: Any) -> None:
        """Say nothing of a client that has gone away."""


def socket_address(address: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """The family of an *address*, as that of ``::``, and where to listen.

    Raises:
        OSError: there is no such address.
    """
    family, *_, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, where
