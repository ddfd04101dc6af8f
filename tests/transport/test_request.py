"""The request that a worker of ours makes of a message: of which class it is, and who hears of its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery, signals
from celery.exceptions import Ignore, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker import request as of_celery
from kombu.exceptions import OperationalError
from kombu.utils.imports import symbol_by_name

from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.transport import request as of_ours
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.request import requests_of
from kombu_redisdelay.transport.tasks import Gate

#: Of no task of another test: Celery shares these among all apps of a process, under their names.
NAME = "request.work"


class Own(of_celery.Request):  # type: ignore[misc]
    """That of an application."""

    def on_failure(self, *args: Any, **kwargs: Any) -> Any:
        self.app.heard.append("own")
        return super().on_failure(*args, **kwargs)


class Others:
    """No request of Celery."""


@pytest.fixture
def app() -> Iterator[Any]:
    app: Any = Celery("app", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.heard = []
    yield app
    app.close()


def task_of(app: Celery, name: str = NAME, **options: Any) -> Any:
    @app.task(name=name, shared=False, **options)
    def work() -> None: ...

    app.finalize()
    return app.tasks[name]


def requests(app: Celery, **options: Any) -> Any:
    consumer = SimpleNamespace(
        app=app, controller=SimpleNamespace(semaphore=None), task_consumer=None, hub=None
    )
    return requests_of(consumer, Gate(), Options(**options))


def test_tasks_have_it_only_while_strategies_are_made(app: Any) -> None:
    task, own = task_of(app), task_of(app, "request.own", Request=Own)
    other = task_of(app, "request.other", Request=Others)
    own.Request = Own
    for _ in range(2):
        with requests(app):
            assert issubclass(task.Request, of_ours.Request)
            # First ours, and once, also when the connection was made again.
            assert [each for each in own.Request.__mro__ if issubclass(each, Own)] == [own.Request, Own]
            assert own.Request.__mro__.index(of_ours.Request) < own.Request.__mro__.index(Own)
            assert other.Request is Others
        assert task.Request == "celery.worker.request:Request"
        assert "Request" not in vars(task)
        assert vars(own)["Request"] is own.Request is Own


class Ended:
    """A task that ends, and what becomes of its message.

    Arguments:
        keeps: whether failed tasks are kept.
    """

    def __init__(self, app: Any, keeps: bool = True, acks_late: bool = True, **options: Any) -> None:
        self.settled: list[str] = []
        self.copies: list[Any] = []
        self.told: list[tuple[str, str]] = []
        channel: Any = Channel.__new__(Channel)
        channel.__dict__.update(
            options=SimpleNamespace(kept_failed=object() if keeps else None),
            closed=False,
            _qos=SimpleNamespace(failures={}),
        )
        self.failures: dict[str, Any] = channel.qos.failures
        self.message = SimpleNamespace(
            channel=channel,
            headers={"id": "the-id", "task": NAME},
            body=b"[[], {}, {}]",
            payload=([], {}, {}),
            content_type="application/json",
            content_encoding="utf-8",
            delivery_info={},
            properties={},
            delivery_tag="tag",
            stored_as=SimpleNamespace(queue="q"),
            ack_log_error=None,
            reject_log_error=None,
        )
        task = task_of(app, acks_late=acks_late, **options)
        with requests(app):
            made: Any = of_celery.create_request_cls(
                symbol_by_name(task.Request), task, SimpleNamespace(apply_async=None), "host", None, app=app
            )
        self.request = made(
            self.message,
            on_ack=lambda *args: self.settled.append("acked"),
            on_reject=lambda *args: self.settled.append(f"rejected {args[-1]}"),
            app=app,
            task=task,
            hostname="host",
        )
        self.request.tell = lambda outcome, error="-", ran=None: self.told.append((outcome, error))

    def by(self, error: BaseException, **kwargs: Any) -> None:
        try:
            raise error
        except BaseException:
            self.request.on_failure(ExceptionInfo(), **kwargs)


@pytest.mark.parametrize(
    ("error", "outcome", "settled"),
    [
        (KeyError("a"), ("failed", "KeyError"), "acked"),
        (Reject("no"), ("failed", "Reject"), "rejected False"),
        (Reject("no", requeue=True), ("requeued", "-"), "rejected True"),
        # `Task.retry()` could not publish.
        (Reject(OperationalError("away")), ("requeued", "-"), "rejected True"),
        (Ignore(), ("ignored", "-"), "acked"),
        (Retry("later", KeyError()), ("retried", "-"), "acked"),
        # Celery announces it.
        (Terminated("15"), ("terminated", "-"), "acked"),
        (TimeLimitExceeded(1), ("failed", "TimeLimitExceeded"), "acked"),
        (WorkerLostError("gone"), ("failed", "WorkerLostError"), "acked"),
    ],
)
def test_what_becomes_of_it(app: Any, error: Any, outcome: tuple[str, str], settled: str) -> None:
    ended = Ended(app)
    ended.by(error)
    assert ended.told == [outcome]
    assert ended.settled == [settled]
    assert bool(ended.failures) == (outcome[0] == "failed")


def test_a_lost_process_whose_task_comes_back_has_not_failed(app: Any) -> None:
    ended = Ended(app, reject_on_worker_lost=True)
    ended.by(WorkerLostError("gone"))
    assert (ended.told, ended.settled, ended.failures) == ([], ["rejected True"], {})


def test_an_ack_waits_until_celery_says_that_the_process_was_lost_for_good(app: Any) -> None:
    """The failure is kept by the ack, and Celery acks before it says so."""
    ended, seen = Ended(app), []

    def fails(**kwargs: Any) -> None:
        seen.append((list(ended.settled), dict(ended.failures)))

    signals.task_failure.connect(fails, weak=False)
    try:
        ended.by(WorkerLostError("gone"))
    finally:
        signals.task_failure.disconnect(fails)
    assert seen == [([], {})]
    assert (ended.settled, list(ended.failures)) == (["acked"], ["tag"])


@pytest.mark.parametrize("error", [Reject("no"), Reject("no", requeue=True), Terminated("15")])
def test_a_result_that_is_not_stored_leaves_no_message_behind(
    app: Any, error: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ended(app)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no such luck")

    for name in ("mark_as_failure", "mark_as_revoked"):
        monkeypatch.setattr(ended.request.task.backend, name, refuse)
    with caplog.at_level(logging.ERROR):
        ended.by(error)
    assert len(ended.settled) == 1


def test_a_hard_time_limit_is_told_once(app: Any) -> None:
    """With prefork, by two methods."""
    ended, told = Ended(app), []
    del ended.request.tell
    made: Any = type(ended.request)
    made.tells = made.lists_ends = True
    members = SimpleNamespace(due_ms=None)
    ended.message.stored_as = SimpleNamespace(queue="q", taken_ms=0, taken_at=0, members=members)
    finishing = SimpleNamespace(add=lambda queue, task: told.append((queue, task.outcome, task.error)))
    made.open_channel = SimpleNamespace(consumer=SimpleNamespace(finishing=finishing))
    ended.by(TimeLimitExceeded(1))
    ended.request.on_timeout(False, 1)
    assert told == [("q", "failed", "TimeLimitExceeded")]
    assert list(ended.failures) == ["tag"]


def test_that_of_an_application_hears_of_it_too(app: Any) -> None:
    ended = Ended(app, Request=Own)
    ended.by(KeyError("a"))
    assert app.heard == ["own"]
    assert ended.told == [("failed", "KeyError")]


def test_what_is_not_to_be_kept(app: Any) -> None:
    ended = Ended(app, keeps=False)
    ended.by(KeyError("a"))
    assert (ended.failures, ended.told) == ({}, [("failed", "KeyError")])
