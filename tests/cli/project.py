"""The app of the real `celery -A tests.cli.project ...` processes."""

from __future__ import annotations

import os

from celery import Celery
from celery.signals import worker_ready

app = Celery("project", broker=os.environ["PROJECT_BROKER"])


@app.task(name="shop.close_order")
def close_order() -> None:
    pass


@worker_ready.connect
def serve_metrics(**kwargs: object) -> None:
    """As docs/metrics.rst says."""
    if "PROJECT_METRICS_PORT" in os.environ:
        # Not at the top: some tests have it not installed.
        from prometheus_client import start_http_server

        start_http_server(int(os.environ["PROJECT_METRICS_PORT"]))
