"""A line that is closed by a signal handler, in the middle of what its thread does with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, Timer
from typing import Any

import pytest
from redis import Connection

from harness.process import wait_until
from harness.redis_server import HOST, RedisServer
from kombu_redisdelay.broker.server.line import Line

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def line(server: RedisServer) -> Iterator[Line]:
    line = Line(lambda: Connection(host=HOST, port=server.port, socket_timeout=15))
    yield line
    line.disconnect()


@contextmanager
def a_signal(handler: Callable[..., Any], after: float) -> Iterator[None]:
    """*handler* is called for a signal that comes after so many seconds."""
    before = signal.signal(signal.SIGUSR1, handler)
    timer = Timer(after, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_the_handler_closes_it_and_raises(line: Line) -> None:
    """As that of Celery beat does when it is stopped while it publishes."""

    def stop(*signal: object) -> None:
        line.disconnect()
        raise SystemExit

    with a_signal(stop, after=0.3), pytest.raises(SystemExit):
        line.call("BLPOP", "nothing", 10)
    assert line.connection._sock is None
    # The reply to what was interrupted is not taken for that to the next command.
    assert line.call("ECHO", "next") == b"next"


def test_the_handler_closes_it_and_returns(line: Line) -> None:
    handled: list[bool] = []

    def close(*signal: object) -> None:
        line.disconnect()
        handled.append(True)

    with a_signal(close, after=0.3):
        assert line.call("BLPOP", "nothing", 1) is None
    assert handled == [True]
    assert line.call("ECHO", "next") == b"next"


def test_another_thread_waits_for_what_is_under_way(line: Line, server: RedisServer) -> None:
    replies: list[Any] = []
    thread = Thread(target=lambda: replies.append(line.call("BLPOP", "list", 10)))
    line.call("ECHO", "this thread used it before")
    thread.start()
    with server.client() as client:
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, 20, "that it waits")
        pusher = Timer(0.3, client.rpush, ("list", "one"))
        pusher.start()
        line.disconnect()
        thread.join(5)
        pusher.join()
    assert replies == [[b"list", b"one"]]
    assert line.connection._sock is None
