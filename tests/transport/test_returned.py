"""What is known of a task that Celery calls failed: with Celery's own tracer, and what leaves it as it comes
from another process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
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
from kombu.exceptions import EncodeError, OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from kombu_redisdelay.broker.failure import CONTINUATION, HOOK, RESULT
from kombu_redisdelay.transport.failures import bare, error_name
from kombu_redisdelay.transport.returned import lost_of, tell_what_has_returned

#: From 5.7 on, Celery bears what its hooks raise.
BEARS_HOOKS = tuple(map(int, celery.__version__.split(".")[:2])) >= (5, 7)
ID = "the-id"
FAILED = ""


@pytest.fixture(autouse=True)
def _extended() -> Iterator[None]:
    with (
        mock.patch.object(trace, "report_internal_error", trace.report_internal_error),
        mock.patch.object(trace.TraceInfo, "handle_failure", trace.TraceInfo.handle_failure),
    ):
        tell_what_has_returned()
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
        if state != "FAILURE":
            self.where.at(state)
        elif self.where.is_left:
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


class Continuation(Task):  # type: ignore[misc]
    """What follows a task. To send it raises what *where* says."""

    where: Where

    def apply_async(self, *args: Any, **kwargs: Any) -> None:
        self.where.at("continuation")


def report(where: Where, result: Any = None, id: str = ID, **request: Any) -> Any:
    """Have Celery trace a task. Returns what reports its end, as it comes from another process; ``None`` if
    it has succeeded."""
    app = Celery("traced", broker="memory://", set_as_current=False)
    app.backend_cls = Results
    Results.where = where

    @app.task(shared=False, base=Hooks, track_started=True, backend=Results(app))
    def work() -> Any:
        where.at("function")
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
        "callbacks": [signature] if request.get("link") else None,
        "chain": [signature] if request.get("chain") else None,
        "chord": signature if request.get("chord") else None,
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
        where = Where({"continuation": kind("why")}, is_left)
        assert lost(report(where, None, ID, **{follows: True})) == CONTINUATION
        assert "SUCCESS" not in where.passed
        # If it was sent, only the result is lost.
        assert lost(report(Where({"SUCCESS": kind("why")}, is_left), None, ID, **{follows: True})) == RESULT

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
    before = trace.report_internal_error, trace.TraceInfo.handle_failure
    tell_what_has_returned()
    assert (trace.report_internal_error, trace.TraceInfo.handle_failure) == before


def test_nothing_is_called_for_a_task_that_succeeds() -> None:
    with mock.patch("kombu_redisdelay.transport.returned._mark") as mark:
        assert report(Where({}), link=True, chord=True) is None
    assert not mark.called
