"""The Celery app that the workers run; told what to do through an environment variable."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from tools.benchmarks.postbox import post
from tools.benchmarks.site import Site

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


def variables(site: Site, postbox: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a worker whose tasks write to the *postbox*, with *settings* of Celery."""
    return {VARIABLE: json.dumps([asdict(site), postbox, settings])}


def counted(site: Site) -> str:
    """The key in Redis of how many tasks have said that they ran."""
    return f"{site.queue}:counted"


def begun(site: Site) -> str:
    """The key in Redis of the numbers of the tasks that have begun, as often as they have."""
    return f"{site.queue}:begun"


def _no_op() -> None:
    """Does nothing."""


def _fail() -> None:
    raise KeyError("as planned")


if VARIABLE in os.environ:
    _site, _postbox, _settings = json.loads(os.environ[VARIABLE])
    site = Site(**_site)
    site.transport.register()
    app = new_app(site)
    app.conf.update(_settings)
    _redis = site.redis()

    app.task(_no_op, name="no_op")
    app.task(_fail, name="fail")

    @app.task(name="mark")
    def mark(subject: str) -> None:
        """Say when it ran."""
        post(_postbox, subject, time.monotonic())

    @app.task(name="count")
    def count(seconds: float = 0) -> None:
        """Take some time, and say that it ran."""
        if seconds:
            time.sleep(seconds)
        _redis.incr(counted(site))

    @app.task(name="begin")
    def begin(number: int, seconds: float) -> None:
        """Say that it has begun, and take some time."""
        _redis.rpush(begun(site), number)
        time.sleep(seconds)

    @app.task(name="late", bind=True)
    def late(self: Any) -> None:
        """Say by how many seconds it was late."""
        now = time.time()
        post(_postbox, "late", now - datetime.fromisoformat(self.request.eta).timestamp())

    @worker_ready.connect(weak=False)
    def _ready(**kwargs: Any) -> None:
        post(_postbox, READY, time.monotonic())
