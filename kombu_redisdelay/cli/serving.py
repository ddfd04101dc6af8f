"""Serves HTTP to programs: metrics to Prometheus, and a health check to an orchestrator such as Kubernetes.
Clients that are silent, or too many, cannot block it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any

import click

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


PATH = "/healthz"


def serve_health(address: str, port: int, problem: Callable[[], str | None]) -> str:
    """Answer at :data:`PATH` from a thread, until the program ends: with 200, or with 503 while there is a
    problem.

    Arguments:
        port: 0 for any that is free.
        problem: returns what is wrong, in one line, ``None`` if nothing is. Other threads call it.

    Returns:
        The URL of the check.

    Raises:
        click.ClickException: it cannot listen there.
    """

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] == PATH:
                found = problem()
                self._answer(200 if found is None else 503, found or "ok")
            else:
                self._answer(404, f"The health check is {PATH}")

        def _answer(self, status: int, text: str) -> None:
            body = f"{text}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    try:
        family, where = socket_address(address, port)
        server = type("Server", (_Server,), {"address_family": family})(where, Handler)
    except OSError as exc:
        raise click.ClickException(f"cannot listen on {address}:{port}: {exc.strerror}") from exc
    Thread(target=server.serve_forever, name="redisdelay-health", daemon=True).start()
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{server.server_address[1]}{PATH}"


class _Server(BoundedThreads, TCPServer):
    """Not http.server's own: it asks the DNS for the name of this host, which may take seconds."""
