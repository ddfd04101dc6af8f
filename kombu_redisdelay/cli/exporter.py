"""``celery delayed exporter``"""

from __future__ import annotations

import signal
from importlib.resources import files
from threading import Event

import click

from kombu_redisdelay.cli.broker import connect, queue_names
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.operations.access import Access


@click.command("exporter")
@click.option("--port", type=click.IntRange(0, 65535), default=9808, show_default=True)
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--dashboard", "file", flag_value="dashboard.json", help="Print a dashboard for Grafana.")
@click.option("--alerts", "file", flag_value="alerts.yml", help="Print alerts, as rules for Prometheus.")
def command(port: int, address: str, file: str | None) -> None:
    """Serve what `stats` shows to Prometheus. Runs until it is told to stop.

    Redis is read whenever Prometheus asks. The workers serve their own metrics.

    With --dashboard or --alerts, it prints this file and ends. It needs no broker for that.
    """
    if file is None:
        _serve(port, address)
    else:
        text = files("kombu_redisdelay").joinpath("monitoring").joinpath(file).read_text("utf-8")
        for line in text.splitlines():
            echo(line)


def _serve(port: int, address: str) -> None:
    # Not at the top, because prometheus_client need not be installed, and help and files need none.
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
