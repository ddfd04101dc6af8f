"""The Celery app that the workers run; told what to do through an environment variable."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from datetime import datetime
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from benchmarks.postbox import post
from benchmarks.site import Site

VARIABLE = "REDISDELAY_BENCHMARK"

READY = "ready"


def new_app(site: Site) -> Celery:
    """The app of a worker, or of a producer: defaults but for broker, its options, queue."""
    app = Celery("benchmarks", broker=site.url, set_as_current=False)
    app.conf.update(
        broker_transport_options=dict(site.transport.options),
        broker_connection_retry_on_startup=True,
        task_default_queue=site.queue,
        task_ignore_result=True,
    )
    return app


def variables(site: Site, postbox: str) -> dict[str, str]:
    """The environment of a worker whose tasks write to the *postbox*."""
    return {VARIABLE: json.dumps([asdict(site), postbox])}


def _no_op() -> None:
    """Does nothing."""


if VARIABLE in os.environ:
    _site, _postbox = json.loads(os.environ[VARIABLE])
    site = Site(**_site)
    site.transport.register()
    app = new_app(site)

    app.task(_no_op, name="no_op")

    @app.task(name="mark")
    def mark(subject: str) -> None:
        """Say when it ran."""
        post(_postbox, subject, time.monotonic())

    @app.task(name="late", bind=True)
    def late(self: Any) -> None:
        """Say by how many seconds it was late."""
        now = time.time()
        post(_postbox, "late", now - datetime.fromisoformat(self.request.eta).timestamp())

    @worker_ready.connect(weak=False)
    def _ready(**kwargs: Any) -> None:
        post(_postbox, READY, time.monotonic())
