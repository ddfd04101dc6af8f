"""The Celery app that the workers run."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from asyncio import CancelledError
from typing import Any

from celery import Celery, Task
from celery.exceptions import Reject, WorkerShutdown, WorkerTerminate

from tests.end_to_end.environment import Environment
from tests.end_to_end.ledger import Entry, Ledger

environment = Environment.of_this_process()
ledger = Ledger(environment.ledger)
app = Celery("end_to_end", broker=environment.broker)
app.conf.update(environment.settings)


def _note(event: str, label: str, request: Any) -> None:
    ledger.write(
        Entry(
            event,
            label,
            time.time(),
            os.getpid(),
            request.eta,
            request.delivery_info["redelivered"],
            request.get("x-delivery-count"),
        )
    )


def _work(request: Any, label: str, seconds: float, gate: str | None) -> str:
    _note("started", label, request)
    time.sleep(seconds)
    while gate is not None and not os.path.exists(gate):
        time.sleep(0.01)
    _note("ended", label, request)
    return label


@app.task(name="work", bind=True)
def work(self: Any, label: str, seconds: float = 0, gate: str | None = None) -> str:
    """Take some time, and as long as there is no file at *gate*."""
    return _work(self.request, label, seconds, gate)


@app.task(name="work_late", bind=True, acks_late=True)
def work_late(self: Any, label: str, seconds: float = 0, gate: str | None = None) -> str:
    return _work(self.request, label, seconds, gate)


@app.task(name="limited", bind=True, rate_limit="1/h")
def limited(self: Any, label: str) -> str:
    """A worker begins one, and keeps the others for an hour, unless it is told to stop."""
    return _work(self.request, label, 0, None)


@app.task(name="limited_late", bind=True, rate_limit="1/h", acks_late=True)
def limited_late(self: Any, label: str) -> str:
    return _work(self.request, label, 0, None)


@app.task(name="block", bind=True)
def block(self: Any, label: str) -> None:
    """Keep the thread for good, as an extension module may: no greenlet runs meanwhile."""
    _note("started", label, self.request)
    ctypes.CDLL(None).sleep(600)


@app.task(name="block_late", bind=True, acks_late=True)
def block_late(self: Any, label: str, gate: str) -> str:
    """Keep the thread as long as there is no file at *gate*, as an extension module may: no greenlet runs."""
    _note("started", label, self.request)
    while not os.path.exists(gate):
        ctypes.CDLL(None).usleep(10_000)
    _note("ended", label, self.request)
    return label


@app.task(name="compute_late", bind=True, acks_late=True)
def compute_late(self: Any, label: str, gate: str) -> str:
    """Compute as long as there is no file at *gate*: no greenlet runs meanwhile."""
    _note("started", label, self.request)
    while not os.path.exists(gate):
        pass
    _note("ended", label, self.request)
    return label


@app.task(name="toil_late", bind=True, acks_late=True)
def toil_late(self: Any, label: str) -> None:
    """Compute for ever. Greenlets take turns."""
    _note("started", label, self.request)
    while True:
        until = time.monotonic() + 0.01
        while time.monotonic() < until:
            pass
        time.sleep(0.001)


@app.task(name="kill_worker", bind=True, acks_late=True)
def kill_worker(self: Any, label: str) -> None:
    """Kill the worker, as a bug in an extension module does, or too large an appetite for memory."""
    _note("started", label, self.request)
    # Each worker has a session of its own. This process may be a child that outlives it by a moment.
    os.kill(os.getsid(0), signal.SIGKILL)
    time.sleep(60)


@app.task(name="kill_process", bind=True, acks_late=True, reject_on_worker_lost=True)
def kill_process(self: Any, label: str) -> None:
    """Kill the process of the pool that runs it, as the kernel does with one that takes too much memory."""
    _note("started", label, self.request)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


class Unheard(BaseException):
    """What nobody catches."""


class Unspeakable(BaseException):
    """What nobody catches, and nobody can print."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


LEAVING = (
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    WorkerShutdown,
    WorkerTerminate,
    Unheard,
    Unspeakable,
    CancelledError,
    MemoryError,
)


@app.task(name="leave", bind=True, acks_late=True)
def leave(self: Any, label: str, kind: str) -> None:
    """End with an exception that is no error of a task."""
    _note("started", label, self.request)
    raise next(leaving for leaving in LEAVING if leaving.__name__ == kind)


class BrokenHook(Task):  # type: ignore[misc]  # celery has no types
    """What an application does when a task has failed, with a fault in it."""

    def on_failure(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a fault in the hook")


@app.task(name="fail_with_hook", bind=True, base=BrokenHook, acks_late=True)
def fail_with_hook(self: Any, label: str) -> None:
    _note("started", label, self.request)
    raise ValueError("the bank is closed")


@app.task(name="reject", bind=True, acks_late=True)
def reject(self: Any, label: str) -> None:
    """Refuse to do it, again and again."""
    _note("started", label, self.request)
    raise Reject("not now", requeue=True)


@app.task(name="raise_late", acks_late=True)
def raise_late(label: str) -> None:
    raise ValueError("the bank is closed")


@app.task(name="refuse", acks_late=True)
def refuse(label: str) -> None:
    raise Reject("no such account", requeue=False)


@app.task(name="give_up", bind=True, acks_late=True)
def give_up(self: Any, label: str) -> None:
    """As Celery's documentation of ``Reject`` shows it."""
    _note("started", label, self.request)
    raise Reject(OSError(errno.ENOMEM, "Cannot allocate memory"), requeue=False)


@app.task(name="retry_once", bind=True)
def retry_once(self: Any, label: str) -> str:
    _note("started", label, self.request)
    if not self.request.retries:
        raise self.retry(countdown=1)
    return label


@app.task(name="retry_late", bind=True, acks_late=True)
def retry_late(self: Any, label: str) -> str:
    """The first time, it retries itself after a while."""
    if self.request.retries or self.request.get("x-delivery-count"):
        return _work(self.request, label, 0, None)
    _note("started", label, self.request)
    time.sleep(1)
    raise self.retry(countdown=0)


@app.task(name="after", bind=True)
def after(self: Any, result: str) -> str:
    """A task that gets the result of another one."""
    return _work(self.request, f"after {result}", 0, None)


@app.task(name="add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="total")
def total(numbers: list[int]) -> int:
    return sum(numbers)
