"""The tasks of a Celery worker in this process: which are at work, and which may begin.

Celery hands a task to its pool by ``execute_using_pool`` of its request: at once, or when its rate limit,
its countdown, or a place in the prefork pool allows it. So each task that begins passes one :class:`Gate`.
When it is shut, what has not passed it never begins in this worker, whatever timer, bucket or semaphore still
holds it.

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

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from kombu.transport import virtual
from redis.exceptions import RedisError

from kombu_redisdelay.words import cut, in_a_line

_Copied = TypeVar("_Copied")


#: How often something is copied that other threads change meanwhile.
_COPIES = 100

#: The strategy of a task class that hands each task to the controller. Others may begin it in another way:
#: that of celery-batches has a buffer.
STRATEGY = "celery.worker.strategy:default"


def at_one_moment(copy: Callable[[], _Copied]) -> _Copied:
    """What *copy* makes of a collection that other threads may change meanwhile, in particular a weak one."""
    for _ in range(_COPIES):
        with suppress(RuntimeError, KeyError):
            return copy()
    return copy()


def started_tasks(messages: Mapping[str, virtual.Message]) -> set[str]:
    """The delivery tags of the messages whose task Celery has started, and counts as not ended.

    Arguments:
        messages: delivery tag -> message.
    """
    state = sys.modules.get("celery.worker.state")
    if state is None:
        return set()
    requests = at_one_moment(lambda: list(state.active_requests))
    # Other libraries put requests of their own there.
    started = {id(getattr(request, "message", None)) for request in requests}
    return {tag for tag, message in messages.items() if id(message) in started}


def message_of(job: Any) -> Any:
    """The message of a *job* of the prefork pool; ``None`` if it has none."""
    return getattr(getattr(job._accept_callback, "__self__", None), "message", None)


def tasks_that_ended_the_worker(messages: Mapping[str, virtual.Message]) -> set[str]:
    """The delivery tags of the messages whose task has raised an exception that Celery does not count as the
    end of a task, such as ``SystemExit`` in a greenlet.

    To be called when the worker stops. A worker that stops in good order waits for its tasks. So a task that
    was started and has not ended by then will never end. A worker that is told to stop at once does not wait
    for its tasks, so none of them counts as failed.

    Arguments:
        messages: delivery tag -> message.
    """
    return set() if is_terminated() else started_tasks(messages)


def is_terminated() -> bool:
    """Whether a Celery worker in this process was told to stop at once. It kills its tasks then."""
    state = sys.modules.get("celery.worker.state")
    return state is not None and state.should_terminate not in (None, False)


def forget_task(message: virtual.Message) -> None:
    """Have Celery forget the task of a *message* whose callback has failed. Otherwise it counts it as a task
    that waits for the pool, for ever."""
    state: Any = sys.modules.get("celery.worker.state")
    for request in list(state.requests.values()) if state else ():
        if getattr(request, "message", None) is message:
            state.task_ready(request)


def is_exit(error: BaseException) -> bool:
    """Whether *error* is how a process, or a greenlet, is asked to end. Celery's ``WorkerShutdown`` and
    ``WorkerTerminate`` are such errors."""
    return isinstance(error, (SystemExit, KeyboardInterrupt)) or is_end_of_greenlet(error)


def is_end_of_greenlet(error: BaseException) -> bool:
    """Whether *error* is how a greenlet is killed."""
    return isinstance(error, getattr(sys.modules.get("greenlet"), "GreenletExit", ()))


def name_of(message: virtual.Message) -> str:
    """``task[id]``, as Celery's log has it; empty if *message* has no id."""
    id, task = message.headers.get("id"), message.headers.get("task")
    return cut(f"{task or ''}[{id}]") if id else ""


def worker_name() -> str:
    """The name of the Celery worker that runs in this process, such as ``celery@web-1``; empty if there is
    none."""
    # Celery gives it to its tasks from there.
    localized = getattr(sys.modules.get("celery.app.trace"), "_localized", ())
    name = localized[-1] if localized else None
    return name if isinstance(name, str) else ""


def failure() -> str:
    """The exception that the caller handles at this moment, in a line. Empty if there is none.

    A callback may reject a message because of it, and so does Celery with a task that it does not know. When
    a task has failed, Celery rejects its message later, without the reason.
    """
    error = sys.exc_info()[1]
    return "" if error is None else in_a_line(error)


def has_crashed() -> bool:
    """Whether a Celery worker, which gives its messages back, is being stopped by an error at this moment.
    Any of the messages that it holds may have caused the error. For instance, its pool sets timers, and they
    fire long after the callback has returned."""
    error = sys.exc_info()[1]
    if not isinstance(error, Exception) or is_terminated():
        return False
    return not isinstance(error, (OSError, RedisError))


class Gate:
    """Whether the tasks of a Celery worker may begin.

    Attributes:
        is_shut: then none begins any more. A signal handler may set it.
    """

    is_shut = False


def keep_from_beginning(message: Any) -> bool:
    """Make sure that the task of a *message* never begins, after the gate was shut. Returns whether that was
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
