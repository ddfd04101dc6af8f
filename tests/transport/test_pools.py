"""Celery's prefork pool hears of the end of each process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from celery.concurrency import get_implementation
from celery.concurrency.base import BasePool

from kombu_redisdelay.extending import extend
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.pools import _told_of_escapes
from kombu_redisdelay.transport.tasks import Gate
from kombu_redisdelay.transport.upstream import (
    LOOK_EVERY,
    LOOKS,
    LookingAgain,
    module_of,
    track_living,
)


class Hub:
    """kombu's event loop, as far as it is used here."""

    def __init__(self) -> None:
        self.later: list[Callable[[], object]] = []

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        assert seconds == LOOK_EVERY
        self.later.append(call)


@pytest.mark.parametrize("after", [1, 3, LOOKS])
def test_a_process_whose_sentinel_closed_before_it_had_ended(after: int) -> None:
    """Each time that it is looked at, it is there, but for the last."""
    tracked, dying = SimpleNamespace(_sentinel_poll=7), SimpleNamespace(_sentinel_poll=None)
    pool, hub, looks = SimpleNamespace(_pool=[tracked, dying]), Hub(), 0

    def maintain_pool() -> str:
        nonlocal looks
        looks += 1
        if looks > after:
            pool._pool = [tracked]
        return "done"

    pool.maintain_pool = maintain_pool
    extend(pool, "maintain_pool", LookingAgain(pool, hub))
    assert pool.maintain_pool() == "done"
    while hub.later:
        hub.later.pop()()
    assert looks == after + 1
    pool.maintain_pool()
    assert hub.later == [], "there is nothing to look for"


def test_one_that_never_ends_is_not_looked_for_for_ever() -> None:
    dying = SimpleNamespace(_sentinel_poll=None)
    pool, hub = SimpleNamespace(_pool=[dying], maintain_pool=lambda: None), Hub()
    extend(pool, "maintain_pool", LookingAgain(pool, hub))
    pool.maintain_pool()
    looks = 0
    while hub.later:
        looks += 1
        hub.later.pop()()
    assert looks == LOOKS


def test_a_process_that_has_ended_is_not_watched_by_a_new_connection() -> None:
    living, ended = SimpleNamespace(), SimpleNamespace(_sentinel_poll=None)
    pool, hub, watched = SimpleNamespace(maintain_pool=lambda: None), Hub(), []
    for process in (living, ended):
        track_living(pool, lambda process, hub: watched.append(process), process, hub)
    assert watched == [living]
    # It is replaced soon.
    assert hub.later == [pool.maintain_pool]


def pool_of_celery(name: str) -> Any:
    # Celery warns when it is eventlet's, and the application is not patched.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_implementation(name)(1)


@pytest.mark.parametrize(
    ("name", "module"),
    [("prefork", "prefork"), ("threads", "thread"), ("gevent", "gevent"), ("solo", "solo")],
)
def test_an_application_may_extend_a_pool(name: str, module: str) -> None:
    """`worker_pool` may be a class of its own."""
    extended: Any = type("Pool", (get_implementation(name),), {"__module__": "shop.pools"})
    assert module_of(extended.__new__(extended)) == module


def test_a_pool_of_its_own_is_none_of_celery_s() -> None:
    """Whatever the module is called."""
    extended: Any = type("Pool", (BasePool,), {"__module__": "shop.prefork"})
    assert module_of(extended.__new__(extended)) == "base"


class Request:
    """That of Celery, whose ack takes so long that a time limit strikes in it."""

    def __init__(self, error: BaseException) -> None:
        channel = Channel.__new__(Channel)
        channel.connection = None
        self.message = SimpleNamespace(channel=channel, acknowledged=False)
        self.error = error

    def on_success(self, result: object) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("pool", "error", "timeout", "looked_after"),
    [
        ("gevent", gevent.Timeout(0.1), 0.1, False),
        # It is the task's own, or no time limit.
        ("gevent", gevent.Timeout(0.1), None, True),
        ("gevent", ValueError(), 0.1, True),
        # These limit no time, whatever the application has imported.
        ("threads", gevent.Timeout(0.1), 0.1, True),
        ("eventlet", gevent.Timeout(0.1), 0.1, True),
    ],
)
def test_a_time_limit_in_an_ack_is_for_the_pool(
    pool: str, error: BaseException, timeout: float | None, looked_after: bool
) -> None:
    later: list[Any] = []
    consumer = SimpleNamespace(call_soon=lambda *call: later.append(call), pool=pool_of_celery(pool))

    def on_apply(target: Any, args: Any, kwargs: Any, callback: Any, **options: Any) -> None:
        callback(target(*args))

    request = Request(error)
    apply = _told_of_escapes(on_apply, consumer, Gate())
    with pytest.raises(type(error)):
        apply(lambda: "done", (), {}, request.on_success, timeout=timeout)
    assert bool(later) == looked_after
