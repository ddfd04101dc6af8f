"""What Celery's worker in this process does with the messages that it was given, if there is one."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from kombu.transport import virtual


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
