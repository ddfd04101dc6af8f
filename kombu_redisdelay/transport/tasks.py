"""What Celery's worker in this process does with the messages that it was given, if there is one."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from kombu.transport import virtual
from redis.exceptions import RedisError


def started_tasks(messages: Mapping[str, virtual.Message]) -> set[str]:
    """Those of *messages*, by delivery tag, whose task was started and has not ended for Celery."""
    state = sys.modules.get("celery.worker.state")
    if state is None:
        return set()
    started = {id(request.message) for request in list(state.active_requests)}
    return {tag for tag, message in messages.items() if id(message) in started}


def tasks_that_ended_the_worker(messages: Mapping[str, virtual.Message]) -> set[str]:
    """Those of *messages*, by delivery tag, whose task ended with an exception that Celery does not take for
    the end of a task, such as ``SystemExit`` in a greenlet.

    A worker that stops in good order waits for its tasks. So what was started and has not ended by then will
    not end. A worker that is told to stop at once waits for none, and none of its tasks has failed.
    """
    state = sys.modules.get("celery.worker.state")
    if state is None or state.should_terminate not in (None, False):
        return set()
    return started_tasks(messages)


def has_crashed() -> bool:
    """Whether Celery's worker goes down just now because of an error, which may have come from any of the
    messages that it holds: its pool sets timers, for instance, when the callback is long done."""
    error = sys.exc_info()[1]
    is_worker = "celery.worker.state" in sys.modules
    return is_worker and isinstance(error, Exception) and not isinstance(error, (OSError, RedisError))
