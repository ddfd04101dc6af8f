"""Knows which tasks of a Celery worker may begin, and keeps the others from it when the worker stops.

Celery hands a task to its pool by ``_process_task`` of the controller: at once, or when its rate limit, its
countdown, or a place in the prefork pool allows it. So each task that begins passes this one door. When it is
shut, what has not passed it never begins in this worker, whatever timer, bucket or semaphore still holds it.

A task that has passed may still wait inside of the pool:

- in ``prefork`` until it is written to a process. Celery has the pool forget what was not, when it stops
  (:mod:`~kombu_redisdelay.transport.pools`). What was written counts as begun: the process runs it before it
  ends;
- in ``threads`` until a thread takes it;
- in ``gevent`` and ``eventlet`` until there is a place for its greenlet.

It counts as outside again when the pool has given it up. Only then may another worker get its message: first
it is made sure that it cannot begin here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: The strategy of a task class that hands each task to the controller. Others may begin it in another way:
#: that of celery-batches has a buffer.
STRATEGY = "celery.worker.strategy:default"


class Door:
    """What hands the tasks of a Celery worker to its pool.

    Arguments:
        process: the ``_process_task`` of the controller.

    Attributes:
        let_in: called with the request of each task that is to begin.
    """

    def __init__(self, process: Callable[..., Any]) -> None:
        self.let_in = process
        self.is_shut = False

    def shut(self) -> None:
        """Let nothing in any more. A signal handler may call this, and it may be called twice."""
        self.is_shut = True
        self.let_in = _keep_out


def _keep_out(request: Any) -> None:
    request.message.is_let_in = False


def keep_from_beginning(message: Any) -> bool:
    """Make sure that the task of a *message* never begins, after the door was shut. Returns whether that was
    possible. If not, the task has begun or may begin, or nobody knows.

    Arguments:
        message: a message that was delivered and is not settled.
    """
    task = getattr(message, "received_as", None)
    if task is None or task.Strategy != STRATEGY:
        return False
    if not getattr(message, "is_let_in", False):
        return True
    future = getattr(message, "future", None)
    # Either it is cancelled, or a thread has taken it.
    return future is not None and bool(future.cancel())


def note_given_up(message: Any) -> None:
    """Note that the pool has given up the task of a *message*, and will not begin it."""
    message.is_let_in = False
