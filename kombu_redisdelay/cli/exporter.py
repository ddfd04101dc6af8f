"""``celery delayed exporter``"""

from __future__ import annotations

import signal
from threading import Event

import click

from kombu_redisdelay.cli.broker import connect, queue_names
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.operations.access import Access


@click.command("exporter")
@click.option("--port", type=click.IntRange(0, 65535), default=9808, show_default=True)
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen.")
def command(port: int, address: str) -> None:
    """Serve what `stats` shows to Prometheus. Runs until it is told to stop.

    Redis is read whenever Prometheus asks. The workers serve their own metrics.
    """
    # Not at the top, because prometheus_client need not be installed, and the help needs none.
    from prometheus_client import CollectorRegistry, start_http_server

    from kombu_redisdelay.operations.exporter import QueueCollector

    access = connect(Access)
    registry = CollectorRegistry()
    registry.register(QueueCollector(access.store, lambda: queue_names(access, ())))
    stopped = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        server, _ = start_http_server(port, address, registry)
    except OSError as exc:
        raise click.ClickException(f"Cannot listen on {address}:{port}: {exc.strerror}.") from exc
    echo(f"Serving metrics on http://{address}:{server.server_port}/metrics")
    stopped.wait()
    server.shutdown()
