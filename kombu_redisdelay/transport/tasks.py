"""Finds out what a Celery worker in this process is doing with its messages, if there is a worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from kombu.transport import virtual
from redis.exceptions import RedisError

from kombu_redisdelay.broker.printable import cut, in_a_line

_Copied = TypeVar("_Copied")


#: How often something is copied that other threads change meanwhile.
_COPIES = 100


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


def forget_unstarted() -> None:
    """Have Celery drop its references to the tasks that it has received and not started. It calls them lost
    with the connection; before Celery 5.7, it kept those that had waited for a place in the pool for ever."""
    state: Any = sys.modules.get("celery.worker.state")
    for id, request in list(state.requests.items()) if state else ():
        if request not in state.active_requests:
            state.requests.pop(id, None)


def is_exit(error: BaseException) -> bool:
    """Whether *error* is how a process, or a greenlet, is asked to end. Celery's ``WorkerShutdown`` and
    ``WorkerTerminate`` are such errors."""
    return isinstance(error, (SystemExit, KeyboardInterrupt)) or is_end_of_greenlet(error)


def note_end_of_the_loop(error: BaseException) -> bool:
    """If *error* comes from gevent's loop to what waits in the main greenlet, note that the worker is told
    to stop at once: Celery's signal handler has failed in the loop. It could not stop the pool, and has not
    come to note that. Returns whether the error comes from there."""
    exceptions = sys.modules.get("gevent.exceptions")
    is_end = isinstance(error, getattr(exceptions, "BlockingSwitchOutError", ()))
    state: Any = sys.modules.get("celery.worker.state")
    if is_end and state is not None and not is_terminated():
        state.should_terminate = os.EX_SOFTWARE
    return is_end


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
