"""Checks a setting by which Celery's prefetch count sinks for good where greenlets run the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kombu_redisdelay.operations.doctor.finding import Finding, warning

GREEN = ("gevent", "eventlet")


def check_prefetch(app: Any) -> Iterator[Finding]:
    """Look at the settings of *app*; ``None`` if there is none. A pool that only the command line of a worker
    names is not known here: the worker's log says it."""
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
