"""Checks a setting by which Celery's prefetch count sinks for good: with greenlets, and where pools grow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning

GREEN = ("gevent", "eventlet")


def check_prefetch(app: Any) -> Iterator[Finding]:
    """Look at the settings of *app*; ``None`` if there is none. A pool that only the command line of a worker
    names is not known here, nor whether it has ``--autoscale``: the worker's log says it."""
    if app is None:
        return
    settings = app.conf
    reduces = settings.worker_enable_prefetch_count_reduction and settings.worker_prefetch_multiplier
    if settings.worker_pool in GREEN and reduces:
        yield warning(
            "prefetch count",
            f"Celery lowers it after a lost connection, and with {settings.worker_pool} it stays low",
            "Set worker_enable_prefetch_count_reduction = False.",
        )
    elif reduces == 1:
        yield ok(
            "prefetch count",
            "Celery lowers it after a lost connection. Workers with --autoscale and "
            "worker_prefetch_multiplier = 1 need worker_enable_prefetch_count_reduction = False: else their "
            "pools may never grow again",
        )
