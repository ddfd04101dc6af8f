"""``celery delayed exporter``"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.resources import files
from threading import Event, Lock, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import click

from kombu_redisdelay.cli.broker import connect_when_served, queue_names
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.serving import BoundedThreads, QuietHandler, socket_address
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.viewers import Cached


@click.command("exporter")
@click.option("--port", type=click.IntRange(0, 65535), default=9808, show_default=True)
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--dashboard", is_flag=True, help="Print a dashboard for Grafana.")
@click.option("--alerts", is_flag=True, help="Print alerts, as rules for Prometheus.")
def command(port: int, address: str, dashboard: bool, alerts: bool) -> None:
    """Serve what `stats` shows to Prometheus. Runs until it is told to stop.

    Redis is read whenever Prometheus asks. The workers serve their own metrics.

    With --dashboard or --alerts, it prints this file and ends. It needs no broker for that.
    """
    if dashboard and alerts:
        raise click.UsageError("Give either --dashboard or --alerts: each is a file of its own.")
    if not dashboard and not alerts:
        _serve(port, address)
    else:
        file = "dashboard.json" if dashboard else "alerts.yml"
        text = files("kombu_redisdelay").joinpath("monitoring").joinpath(file).read_text("utf-8")
        for line in text.splitlines():
            echo(line)


def _serve(port: int, address: str) -> None:
    # Not at the top, because prometheus_client need not be installed, and help and files need none.
    from prometheus_client import CollectorRegistry, make_wsgi_app

    from kombu_redisdelay.operations.exporter import QueueCollector

    access = connect_when_served(Access)
    registry = CollectorRegistry()
    registry.register(QueueCollector(access.store, lambda: queue_names(access, ())))
    stopped = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        server = _listen(address, port, make_wsgi_app(registry))
    except OSError as exc:
        raise click.ClickException(f"Cannot listen on {address}:{port}: {exc.strerror}.") from exc
    Thread(target=server.serve_forever, name="redisdelay-exporter", daemon=True).start()
    echo(f"Serving metrics on http://{address}:{server.server_port}/metrics")
    # On Windows, Ctrl-C does not end a wait without a limit.
    while not stopped.wait(1):
        pass
    server.shutdown()


#: A WSGI application.
_Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


def _listen(address: str, port: int, metrics: _Wsgi) -> WSGIServer:
    """
    Raises:
        OSError: it cannot listen there.
    """
    family, where = socket_address(address, port)
    server: WSGIServer = type("Server", (_Server,), {"address_family": family})(where, _Handler)
    server.set_app(_kept(metrics))
    return server


#: What an answer depends on.
_ASKED = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING")


def _kept(metrics: _Wsgi) -> _Wsgi:
    """The same application, which keeps an answer for as long as it took, for clients that ask meanwhile.
    With thousands of queues an answer takes seconds and has megabytes, so only one is made at a time."""
    lock = Lock()

    @lru_cache(maxsize=4)
    def answer(*asked: str) -> Cached[tuple[Any, list[bytes]]]:
        def read() -> tuple[Any, list[bytes]]:
            started: list[Any] = []
            body = list(metrics(dict(zip(_ASKED, asked, strict=True)), lambda *start: started.append(start)))
            return started[0], body

        return Cached(read, lambda _, took: took)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with lock:
            start, body = answer(*(environ.get(name, "") for name in _ASKED)).get().value
        start_response(*start)
        return body

    return app


class _Server(BoundedThreads, WSGIServer):
    pass


class _Handler(QuietHandler, WSGIRequestHandler):
    pass
