"""Counts the places of a Celery worker's pool for Prometheus: an autoscaler divides the work by them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from weakref import ref

from kombu_redisdelay import metrics

#: The pool of the worker that consumes now.
_current: Callable[[], Any] = lambda: None  # noqa: E731


def watch_pool(pool: Any) -> None:
    """Have the metrics of this process tell the places of a worker's *pool*, whenever they are asked."""
    global _current
    _current = ref(pool)
    metrics.watch_pool(_busy, _free)


def _busy() -> int:
    state = sys.modules.get("celery.worker.state")
    return 0 if state is None else len(state.active_requests)


def _free() -> int:
    pool = _current()
    return 0 if pool is None else max(0, int(pool.num_processes or 0) - _busy())
