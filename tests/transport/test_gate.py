"""Which tasks of a Celery worker that stops may still begin."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Task

from kombu_redisdelay.transport.request import _begins
from kombu_redisdelay.transport.tasks import STRATEGY, Gate, keep_from_beginning, note_given_up

TASK = SimpleNamespace(Strategy=STRATEGY)


def received(**marks: Any) -> Any:
    """A message that Celery has received as a task."""
    return SimpleNamespace(received_as=TASK, **marks)


def running() -> Future[None]:
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


@pytest.mark.parametrize(
    ("message", "is_kept"),
    [
        (received(), True),
        (received(is_let_in=True), False),
        (received(is_let_in=False), True),
        (received(is_let_in=True, future=Future()), True),
        (received(is_let_in=True, future=running()), False),
        # It was not received as a task, or is not known any more: its callback may use it.
        (SimpleNamespace(), False),
        (SimpleNamespace(is_let_in=False), False),
        (None, False),
        # What has a strategy of its own may begin in other ways, as with celery-batches.
        (SimpleNamespace(received_as=SimpleNamespace(Strategy="a:b")), False),
        (SimpleNamespace(received_as=SimpleNamespace(Strategy=print)), False),
    ],
)
def test_what_is_kept_from_beginning(message: Any, is_kept: bool) -> None:
    assert keep_from_beginning(message) == is_kept


def test_what_is_queued_for_a_thread_never_runs() -> None:
    message = received(is_let_in=True, future=Future())
    assert keep_from_beginning(message)
    assert not message.future.set_running_or_notify_cancel()


def test_what_the_pool_has_given_up_is_outside() -> None:
    message = received(is_let_in=True)
    note_given_up(message)
    assert keep_from_beginning(message)


def test_tasks_have_this_strategy() -> None:
    assert Task.Strategy == STRATEGY


class Worker:
    """What hands tasks to a pool of threads."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1)
        self.ran: list[Any] = []
        self.gate = Gate()
        self.begin = self.hand_over

    def request(self, message: Any) -> Any:
        return SimpleNamespace(_message=message, gate=self.gate)

    def process_task(self, request: Any) -> None:
        _begins(lambda request, pool: self.begin(request))(request, None)

    def hand_over(self, request: Any) -> None:
        request._message.future = self.executor.submit(self.ran.append, request)


def test_nothing_passes_when_it_is_shut() -> None:
    worker = Worker()
    before, after = (worker.request(received()) for _ in range(2))
    worker.process_task(before)
    worker.gate.is_shut = True
    worker.process_task(after)
    worker.executor.shutdown()
    assert worker.ran == [before]
    assert not keep_from_beginning(before._message)
    assert keep_from_beginning(after._message)


@pytest.mark.parametrize("when", ["before the mark", "behind the mark", "in the gate", "in the pool"])
def test_a_worker_that_is_told_to_stop_while_a_timer_begins_a_task(when: str) -> None:
    """Without an event loop, timers have a thread of their own. What is given back never runs here."""
    worker, given_back = Worker(), []

    def stop(at: str) -> None:
        if at == when:
            worker.gate.is_shut = True
            given_back.append(keep_from_beginning(message))

    class Message(SimpleNamespace):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "is_let_in" and value:
                stop("before the mark")
            super().__setattr__(name, value)
            if name == "is_let_in" and value:
                stop("behind the mark")
            elif name == "future":
                stop("in the pool")

    def process(request: Any) -> None:
        stop("in the gate")
        worker.hand_over(request)

    message = Message(received_as=TASK)
    task = worker.request(message)
    # Nothing that waits for the thread runs before the worker is told.
    gate = Event()
    worker.executor.submit(gate.wait)
    worker.begin = process
    worker.process_task(task)
    gate.set()
    worker.executor.shutdown()
    assert given_back == [when in ("before the mark", "in the pool")]
    assert worker.ran == ([task] if when == "in the gate" else [])
