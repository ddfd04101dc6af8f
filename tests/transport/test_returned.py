"""What is known of a task that Celery calls failed: with Celery's own tracer, and what leaves it as it comes
from another process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import celery
import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery, Task
from celery.app import trace
from celery.backends.base import Backend
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_retry
from kombu.exceptions import EncodeError, OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from kombu_redisdelay.broker.failure import CONTINUATION, HOOK, RESULT
from kombu_redisdelay.transport import returned
from kombu_redisdelay.transport.ending import bare, error_name
from kombu_redisdelay.transport.returned import lost_of, tell_what_has_not_failed

#: From 5.7 on, Celery bears what its hooks raise.
BEARS_HOOKS = tuple(map(int, celery.__version__.split(".")[:2])) >= (5, 7)
ID = "the-id"
FAILED = ""


@pytest.fixture(autouse=True)
def _extended() -> Iterator[None]:
    with (
        mock.patch.object(trace, "report_internal_error", trace.report_internal_error),
        mock.patch.object(trace.TraceInfo, "handle_failure", trace.TraceInfo.handle_failure),
        mock.patch.object(trace.TraceInfo, "handle_retry", trace.TraceInfo.handle_retry),
    ):
        tell_what_has_not_failed()
        yield


class NoAttributes(Exception):
    """It loses its attributes on its way to another process."""

    def __reduce__(self) -> Any:
        return NoAttributes, self.args


class Unpicklable(Exception):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lock = lambda: None


@dataclass
class Where:
    """What raises an error, and where.

    Attributes:
        errors: name of the place -> what is raised there.
        is_left: whether the failure cannot be stored either.
    """

    errors: dict[str, BaseException]
    is_left: bool = False
    passed: list[str] = field(default_factory=list)

    def at(self, place: str) -> None:
        self.passed.append(place)
        if place in self.errors:
            raise self.errors[place]


class Results(Backend):  # type: ignore[misc]  # celery has no types
    """A result backend that refuses what *where* says."""

    where: Where
    persistent = False

    def store_result(self, task_id: str, result: Any, state: str, **kwargs: Any) -> None:
        self.where.at(state)
        if state == "FAILURE" and self.where.is_left:
            raise next(iter(self.where.errors.values()))

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        if state == "SUCCESS":
            self.where.at("chord")

    def _fail_chain(self, *args: Any, **kwargs: Any) -> None:
        pass


class Hooks(Task):  # type: ignore[misc]
    where: Where

    def before_start(self, *args: Any) -> None:
        self.where.at("before_start")

    def on_success(self, *args: Any) -> None:
        self.where.at("on_success")

    def after_return(self, *args: Any) -> None:
        self.where.at("after_return")

    def on_retry(self, *args: Any) -> None:
        self.where.at("on_retry")

    def apply_async(self, *args: Any, **kwargs: Any) -> None:
        """The retry is published."""
        self.where.at("publish")


class Continuation(Task):  # type: ignore[misc]
    """What follows a task. To send it raises what *where* says."""

    where: Where

    def apply_async(self, *args: Any, **kwargs: Any) -> None:
        self.where.at("continuation")


def report(
    where: Where,
    result: Any = None,
    id: str = ID,
    ask: Callable[[Any], Any] | None = None,
    broker: str = "redisdelay://",
    **options: Any,
) -> Any:
    """Have Celery trace a task. Returns what reports its end, as it comes from another process; ``None`` if
    it has succeeded.

    Arguments:
        ask: called with the task, by which it may ask to be tried again.
        options: of the task, and what follows it.
    """
    request = {key: options.pop(key, False) for key in ("link", "chain", "chord")}
    app = Celery("traced", broker=broker, set_as_current=False)
    app.backend_cls = Results
    Results.where = where

    @app.task(shared=False, bind=True, base=Hooks, track_started=True, backend=Results(app), **options)
    def work(self: Any) -> Any:
        where.at("function")
        if ask is not None:
            ask(self)
        return result

    @app.task(shared=False, base=Continuation)
    def after(value: Any) -> None:
        pass

    app.finalize()
    Hooks.where = Continuation.where = where
    signature = after.s()
    asked: dict[str, Any] = {
        "id": id,
        "is_eager": False,
        "delivery_info": {},
        "callbacks": [signature] if request["link"] else None,
        "chain": [signature] if request["chain"] else None,
        "chord": signature if request["chord"] else None,
    }
    tracer = trace.build_tracer(work.name, app.tasks[work.name], app=app)
    try:
        info = tracer(id, (), {}, asked)
    except Exception:
        return pickle.loads(pickle.dumps(ExceptionInfo()))
    return pickle.loads(pickle.dumps(info.retval)) if info.info else None


def lost(info: Any) -> str:
    return lost_of(ID, info, bare(info.exception))


ERRORS = [RedisConnectionError, OutOfMemoryError, OperationalError, EncodeError, ValueError]


@pytest.mark.parametrize("is_left", [False, True], ids=["failure stored", "failure not stored"])
@pytest.mark.parametrize("kind", [*ERRORS, SoftTimeLimitExceeded])
class TestHasReturned:
    def test_result(self, kind: type[Exception], is_left: bool) -> None:
        where = Where({"SUCCESS": kind("why")}, is_left)
        assert lost(report(where)) == RESULT
        assert where.passed.count("function") == 1

    def test_chord(self, kind: type[Exception], is_left: bool) -> None:
        """Its body waits for ever if the part was not counted."""
        for place in ("SUCCESS", "chord"):
            assert lost(report(Where({place: kind("why")}, is_left), chord=True)) == CONTINUATION

    @pytest.mark.parametrize("follows", ["link", "chain"])
    def test_continuation(self, kind: type[Exception], is_left: bool, follows: str) -> None:
        where, options = Where({"continuation": kind("why")}, is_left), dict[str, Any]({follows: True})
        assert lost(report(where, **options)) == CONTINUATION
        assert "SUCCESS" not in where.passed
        # If it was sent, only the result is lost.
        assert lost(report(Where({"SUCCESS": kind("why")}, is_left), **options)) == RESULT

    @pytest.mark.parametrize("hook", ["on_success", "after_return"])
    def test_hook(self, kind: type[Exception], is_left: bool, hook: str) -> None:
        where = Where({hook: kind("why")}, is_left)
        info = report(where, link=True)
        assert where.passed.index("SUCCESS") < where.passed.index(hook)
        if BEARS_HOOKS:
            assert info is None
        else:
            assert lost(info) == HOOK

    @pytest.mark.skipif(BEARS_HOOKS, reason="this Celery bears what hooks raise")
    def test_a_hook_after_that(self, kind: type[Exception], is_left: bool) -> None:
        """What was lost first counts."""
        where = Where({"SUCCESS": EncodeError("no JSON"), "after_return": kind("why")}, is_left)
        assert lost(report(where)) == RESULT


class TestHasFailed:
    """Or nobody knows better."""

    @pytest.mark.parametrize("is_left", [False, True], ids=["failure stored", "failure not stored"])
    @pytest.mark.parametrize("kind", ERRORS)
    @pytest.mark.parametrize("place", ["STARTED", "before_start", "function"])
    def test_the_function_has_not_returned(self, place: str, kind: type[Exception], is_left: bool) -> None:
        info = report(Where({place: kind("why")}, is_left), link=True, chord=True)
        assert lost(info) == FAILED
        assert isinstance(bare(info.exception), kind)

    @pytest.mark.parametrize("error", [Retry("again"), Ignore(), Reject("no", requeue=True)], ids=repr)
    @pytest.mark.parametrize("place", ["function", "on_success"])
    def test_what_asks_for_something_else(self, place: str, error: Exception) -> None:
        info = report(Where({place: error}))
        assert info is None or lost(info) == FAILED

    def test_an_error_that_comes_from_another_task(self) -> None:
        """One that waits for the result of this one, and is stored by pickle."""
        error = bare(report(Where({"SUCCESS": ValueError("?")}, is_left=True)).exception)
        assert lost_of(ID, error) == RESULT
        assert lost_of("another", error) == FAILED
        info = report(Where({"function": error}), id="another")
        assert lost_of("another", info, bare(info.exception)) == FAILED
        info = report(Where({"SUCCESS": error}), id="another")
        assert lost_of("another", info, bare(info.exception)) == RESULT

    @pytest.mark.parametrize("mark", [None, 5, ("the-id",), "the-id"])
    def test_an_attribute_that_is_not_ours(self, mark: object) -> None:
        error = ValueError("?")
        error.redisdelay_returned = mark  # type: ignore[attr-defined]
        assert lost_of(ID, None, error) == FAILED


def retry(task: Any) -> None:
    raise task.retry(countdown=1)


def fail_with_a_retry(task: Any) -> None:
    """For those with ``autoretry_for``."""
    raise KeyError("again")


class TestIsTriedAgain:
    """Its retry is published, so it has not failed."""

    @pytest.mark.parametrize("is_left", [False, True], ids=["failure stored", "failure not stored"])
    @pytest.mark.parametrize("kind", [*ERRORS, SoftTimeLimitExceeded, NoAttributes, Unpicklable])
    @pytest.mark.parametrize("place", ["RETRY", "on_retry"])
    @pytest.mark.parametrize(
        ("ask", "options"),
        [(retry, {}), (fail_with_a_retry, {"autoretry_for": (KeyError,)})],
        ids=["retry()", "autoretry_for"],
    )
    def test_whatever_is_raised_then(
        self, place: str, kind: type[Exception], is_left: bool, ask: Any, options: Any
    ) -> None:
        where = Where({place: kind("why")}, is_left)
        info = report(where, ask=ask, link=True, chord=True, **options)
        assert isinstance(bare(info.exception), Retry)
        assert lost(info) == FAILED
        # Its hook is called once, also if the state was not stored. Nobody hears of a failure.
        expected = ["STARTED", "before_start", "function", "publish", "RETRY", "on_retry"]
        assert where.passed == expected

    @pytest.mark.parametrize("place", ["RETRY", "on_retry"])
    def test_the_log_says_what_is_missing(self, place: str, caplog: pytest.LogCaptureFixture) -> None:
        report(Where({place: RedisConnectionError("away")}), ask=retry)
        # A thread of another test may log at the same time.
        [line] = [each for each in caplog.records if each.name == returned.__name__]
        assert f"work[{ID}]" in line.getMessage()
        assert ("RETRY was not stored (ConnectionError: away)" in line.getMessage()) == (place == "RETRY")
        assert (line.exc_info is None) == (place == "RETRY")

    def test_both(self) -> None:
        where = Where({"RETRY": ValueError("one"), "on_retry": ValueError("two")})
        assert isinstance(bare(report(where, ask=retry).exception), Retry)
        assert where.passed.count("on_retry") == 1

    def test_a_receiver_raises(self, caplog: pytest.LogCaptureFixture) -> None:
        def receive(**kwargs: Any) -> None:
            raise ValueError("a fault")

        task_retry.connect(receive)
        try:
            info = report(Where({"RETRY": ValueError("why")}), ask=retry)
        finally:
            task_retry.disconnect(receive)
        assert isinstance(bare(info.exception), Retry)
        assert "a fault" in caplog.text

    def test_an_error_that_ends_the_worker(self) -> None:
        info = report(Where({"RETRY": MemoryError()}), ask=retry)
        assert isinstance(bare(info.exception), MemoryError)

    @pytest.mark.parametrize("error", [Retry("again"), Ignore(), Reject("no", requeue=True)], ids=repr)
    def test_a_hook_that_asks_for_something_else(self, error: Exception) -> None:
        info = report(Where({"on_retry": error}), ask=retry)
        assert type(bare(info.exception)) is type(error)


class TestIsNotTriedAgain:
    """No retry is published, or it is not what has become of the task."""

    def test_the_retry_is_not_published(self) -> None:
        where = Where({"publish": OperationalError("away")})
        error = bare(report(where, ask=retry).exception)
        assert (type(error), error.requeue) == (Reject, False)
        assert "RETRY" not in where.passed

    def test_it_has_used_up_its_retries(self) -> None:
        info = report(Where({}), ask=lambda task: task.retry(exc=KeyError("last"), max_retries=0))
        assert isinstance(bare(info.exception), KeyError)

    def test_a_retry_of_the_application(self) -> None:
        """Or one of a task that was called as a function. Celery drops such a task."""
        where = Where({"function": Retry("again"), "RETRY": ValueError("why")})
        info = report(where)
        assert isinstance(bare(info.exception), ValueError)
        assert "publish" not in where.passed

    def test_it_goes_on_and_fails(self) -> None:
        """Celery documents that it has failed then."""

        def go_on(task: Any) -> None:
            task.retry(throw=False)
            raise KeyError("later")

        where = Where({"RETRY": ValueError("why")})
        info = report(where, ask=go_on)
        assert isinstance(bare(info.exception), KeyError)
        assert {"publish", "FAILURE"} < {*where.passed}

    def test_it_goes_on_and_returns(self) -> None:
        info = report(Where({"SUCCESS": ValueError("why")}), ask=lambda task: task.retry(throw=False))
        assert lost(info) == RESULT

    def test_another_broker(self) -> None:
        """Its tasks end as with Celery alone."""
        where = Where({"RETRY": ValueError("why")})
        info = report(where, ask=retry, broker="redis://")
        assert isinstance(bare(info.exception), ValueError)

    @pytest.mark.parametrize("error", [Ignore(), Reject("no")], ids=repr)
    def test_celery_stores_nothing(self, error: Exception) -> None:
        where = Where({"function": error, "IGNORED": ValueError(), "REJECTED": ValueError()}, is_left=True)
        assert type(bare(report(where).exception)) is type(error)
        assert where.passed[-1] == "function"


@pytest.mark.parametrize("kind", [NoAttributes, Unpicklable])
def test_an_error_that_keeps_no_attributes(kind: type[Exception]) -> None:
    """Its name and its text are kept."""
    info = report(Where({"SUCCESS": kind("why")}, is_left=True))
    error = bare(info.exception)
    assert (lost(info), error_name(error)) == (RESULT, kind.__name__)
    assert "why" in str(error)


def test_a_result_that_cannot_be_shown() -> None:
    """After it was stored, Celery makes a text of it for the log."""

    class Shy:
        def __repr__(self) -> str:
            raise KeyError("no text")

    info = report(Where({}), Shy())
    assert info is None or lost(info) == HOOK


def test_it_is_extended_once() -> None:
    info = trace.TraceInfo
    before = trace.report_internal_error, info.handle_failure, info.handle_retry
    tell_what_has_not_failed()
    assert (trace.report_internal_error, info.handle_failure, info.handle_retry) == before


def test_nothing_is_called_for_a_task_that_succeeds() -> None:
    with mock.patch("kombu_redisdelay.transport.returned._mark") as mark:
        assert report(Where({}), link=True, chord=True) is None
    assert not mark.called
