"""Logs a warning if a task is acked too early for the mode of its key."""

from __future__ import annotations

import logging
import sys
from typing import Any

from kombu_redisdelay.broker.unique import DONE, LATEST, UNIQUE_HEADER, WHILE_HEADER

logger = logging.getLogger(__name__)

#: Tasks that the log has named.
_told: set[str] = set()


def warn_of_early_acks() -> None:
    """Do so once for each such task that Celery receives. Calling it again changes nothing."""
    signals: Any = sys.modules.get("celery.signals")
    if signals is not None:
        signals.task_received.connect(_on_task_received, dispatch_uid=__name__)


def _on_task_received(request: Any = None, **kwargs: Any) -> None:
    headers = getattr(getattr(request, "message", None), "headers", None) or {}
    # The mode is in the message: a program that does not know the task may have published it.
    if UNIQUE_HEADER not in headers or headers.get(WHILE_HEADER) not in (DONE, LATEST):
        return
    name = request.task.name
    if not request.task.acks_late and name not in _told:
        _told.add(name)
        logger.warning(
            "Task %s is published with %s = %r, and this worker acks it before it runs. So its key is free "
            "by then, as with %r. Set acks_late = True.",
            name,
            WHILE_HEADER,
            headers[WHILE_HEADER],
            "waiting",
        )
