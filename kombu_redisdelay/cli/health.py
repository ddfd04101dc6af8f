"""Serves a health check over HTTP, for an orchestrator such as Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from socketserver import TCPServer
from threading import Thread

import click

from kombu_redisdelay.cli.serving import BoundedThreads, QuietHandler, socket_address

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
