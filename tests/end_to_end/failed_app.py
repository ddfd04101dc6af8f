"""The app of workers whose tasks fail, or seem to, in every way that there is."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from celery import Task
from celery.backends.base import Backend
from celery.exceptions import Ignore, Reject, WorkerLostError
from celery.states import SUCCESS
from redis.exceptions import OutOfMemoryError

from tests.end_to_end.app import app, work

__all__ = ("app",)

LONG = 10_000_000


class Unpicklable(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = lambda: None


class Textless(Exception):
    """An exception that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Leaving(Exception):
    """An exception whose text would end the process that asks for it."""

    def __str__(self) -> str:
        raise SystemExit


def raise_it(task: Any, **secrets: Any) -> None:
    raise KeyError("wrong\n\x1b[31mkey")


def use_up_retries(task: Any) -> None:
    raise task.retry(exc=KeyError("again"), countdown=0, max_retries=2)


def retry_once(task: Any) -> None:
    if not task.request.retries:
        raise task.retry(countdown=0)


def fail_once(task: Any) -> None:
    if not task.request.retries:
        raise KeyError("again")


def ignore(task: Any) -> None:
    raise Ignore


def reject(task: Any) -> None:
    raise Reject("no such account", requeue=False)


def reject_and_requeue(task: Any) -> None:
    raise Reject("not now", requeue=True)


def raise_unpicklable(task: Any) -> None:
    raise Unpicklable("why")


def raise_textless(task: Any) -> None:
    raise Textless


def raise_leaving(task: Any) -> None:
    raise Leaving


def raise_long(task: Any) -> None:
    raise ValueError("x" * LONG)


def take_too_long(task: Any) -> None:
    time.sleep(60)


def kill_process(task: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def leave(task: Any) -> None:
    sys.exit(1)


def succeed(task: Any) -> None:
    pass


class Refusing(Backend):  # type: ignore[misc]  # celery has no types
    """A result backend that is away."""

    def store_result(self, *args: Any, **kwargs: Any) -> None:
        raise ConnectionError("the result backend is away")


class Full(Backend):  # type: ignore[misc]  # celery has no types
    """A result backend in a full Redis."""

    def store_result(self, *args: Any, **kwargs: Any) -> None:
        raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'")


class Killing(Backend):  # type: ignore[misc]  # celery has no types
    """A result backend with which the process of a task is killed while it stores a success."""

    def store_result(self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any) -> None:
        if state == SUCCESS:
            kill_process(task_id)


class Slow(Backend):  # type: ignore[misc]  # celery has no types
    """A result backend that takes long to store a success."""

    def store_result(self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any) -> None:
        if state == SUCCESS:
            time.sleep(60)


class BrokenSuccess(Task):  # type: ignore[misc]
    """A task with a fault in what it does when it has succeeded."""

    def on_success(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a fault in the hook")


class LostElsewhere(Task):  # type: ignore[misc]
    """A task that asks for the result of another one when it has succeeded. That has lost its process."""

    def on_success(self, *args: Any, **kwargs: Any) -> None:
        raise WorkerLostError("another task")


class LostAfterSuccess(Task):  # type: ignore[misc]
    """A task whose process is lost when its success is stored."""

    def on_success(self, *args: Any, **kwargs: Any) -> None:
        kill_process(self)


class BrokenHook(Task):  # type: ignore[misc]
    """A task with a fault in what it does when it has failed."""

    def on_failure(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a fault in the hook")


class BrokenRetry(Task):  # type: ignore[misc]
    """A task with a fault in what it does when it is tried again."""

    def on_retry(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a fault in the hook")


def return_an_object(task: Any) -> object:
    return object()


UNSTORED = {"backend": Refusing(app)}

#: Name -> function, and options of the task. Each is there with early and with late acks.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "raise": (raise_it, {}),
    "retries": (use_up_retries, {}),
    "retry": (retry_once, {}),
    "ignore": (ignore, {}),
    "reject": (reject, {}),
    "requeue": (reject_and_requeue, {}),
    "unpicklable": (raise_unpicklable, {}),
    "textless": (raise_textless, {}),
    "leaving": (raise_leaving, {}),
    "long": (raise_long, {}),
    "not_acked": (raise_it, {"acks_on_failure_or_timeout": False}),
    "soft": (take_too_long, {"soft_time_limit": 0.5}),
    "hard": (take_too_long, {"time_limit": 0.5}),
    "hard_not_acked": (take_too_long, {"time_limit": 0.5, "acks_on_timeout": False}),
    "lost": (kill_process, {}),
    "lost_rejected": (kill_process, {"reject_on_worker_lost": True}),
    "lost_retried": (
        kill_process,
        {"retry_on_worker_lost": True, "max_retries": 1, "default_retry_delay": 0},
    ),
    "lost_late": (succeed, {"base": LostAfterSuccess}),
    "leave": (leave, {}),
    "unstored_retry": (retry_once, UNSTORED),
    "unstored_autoretry": (
        fail_once,
        {"autoretry_for": (KeyError,), "default_retry_delay": 0, **UNSTORED},
    ),
    "hook_retry": (retry_once, {"base": BrokenRetry}),
    "unstored_ignore": (ignore, UNSTORED),
    "unstored": (raise_it, UNSTORED),
    "unstored_leave": (leave, UNSTORED),
    "unstored_reject": (reject, UNSTORED),
    "unstored_hard": (take_too_long, {"time_limit": 0.5, **UNSTORED}),
    "unstored_lost": (kill_process, UNSTORED),
    "unstored_rejected": (kill_process, {"reject_on_worker_lost": True, **UNSTORED}),
    "unstored_retried": (
        kill_process,
        {"retry_on_worker_lost": True, "max_retries": 1, "default_retry_delay": 0, **UNSTORED},
    ),
    "hook_retried": (
        kill_process,
        {"retry_on_worker_lost": True, "max_retries": 1, "default_retry_delay": 0, "base": BrokenRetry},
    ),
    "hook": (raise_it, {"base": BrokenHook}),
    "unstarted": (succeed, {"track_started": True, **UNSTORED}),
    "no_result": (succeed, UNSTORED),
    "not_acked_no_result": (succeed, {"acks_on_failure_or_timeout": False, **UNSTORED}),
    "full_no_result": (succeed, {"backend": Full(app)}),
    "no_json": (return_an_object, {}),
    "no_link": (return_an_object, {}),
    "no_chain": (return_an_object, {}),
    "no_chord": (succeed, UNSTORED),
    "success_hook": (succeed, {"base": BrokenSuccess}),
    "success_hook_lost": (succeed, {"base": LostElsewhere, "reject_on_worker_lost": True}),
    "soft_storing": (succeed, {"soft_time_limit": 0.5, "backend": Slow(app)}),
    "hard_storing": (succeed, {"time_limit": 0.5, "backend": Slow(app)}),
    "lost_storing": (succeed, {"backend": Killing(app)}),
    "succeed": (succeed, {}),
    "expired": (raise_it, {}),
}

for _name, (_function, _options) in KINDS.items():
    for _ack in ("early", "late"):
        app.task(name=f"{_name}.{_ack}", bind=True, acks_late=_ack == "late", **_options)(_function)

app.task(name="unstored_work", bind=True, acks_late=True, **UNSTORED)(work.run.__func__)


@app.task(name="may_fail", bind=True)
def may_fail(self: Any, gate: str) -> str:
    """Fails until there is a file at *gate*."""
    if not os.path.exists(gate):
        raise KeyError(gate)
    return gate
