"""A line that is closed by a signal handler, in the middle of what its thread does with it; and whether it is
at hand."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread, Timer
from typing import Any

import pytest
from redis import Connection
from redis.exceptions import ConnectionError

from kombu_redisdelay.broker.server.line import UNREAD_LIMIT, Ack, Line
from tools.harness.process import wait_until
from tools.harness.redis_server import HOST, RedisServer

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


def ack(number: int = 0) -> Ack:
    # The reply is not 0, so it was not in vain.
    return Ack("q", str(number), ("ECHO", "held"))


def test_at_hand_when_connected_and_idle(line: Line) -> None:
    assert not line.is_at_hand()
    line.call("ECHO", "connects")
    assert line.is_at_hand()
    line.ack(ack())
    # It reads the reply when that has come.
    wait_until(lambda: line.is_at_hand() and not line._written, 20, "the reply")


def test_not_at_hand_when_the_server_has_closed_the_connection(line: Line, server: RedisServer) -> None:
    line.call("ECHO", "connects")
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: not line.is_at_hand(), 20, "that it is noticed")
    # Whoever may wait connects again.
    line.ack(ack())
    line.confirm_acks()
    assert line.is_at_hand()


def test_not_at_hand_while_another_thread_waits(line: Line, server: RedisServer) -> None:
    line.call("ECHO", "connects")
    thread = Thread(target=line.call, args=("BLPOP", "list", 20))
    thread.start()
    with server.client() as client:
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, 20, "that it waits")
        assert not line.is_at_hand()
        client.rpush("list", "one")
    thread.join()
    assert line.is_at_hand()


def test_not_at_hand_when_the_server_does_not_answer(line: Line, server: RedisServer) -> None:
    line.call("ECHO", "connects")
    acks = 0
    os.kill(server.pid, signal.SIGSTOP)
    try:
        while line.is_at_hand():
            line.ack(ack(acks))
            acks += 1
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert acks == UNREAD_LIMIT - 1
    wait_until(line.is_at_hand, 20, "the replies")


def test_a_thread_that_acks_costs_no_second_connection(line: Line) -> None:
    """The others wait for it: it only writes."""
    line.call("ECHO", "connects")
    has_lock, may_go_on = Event(), Event()

    def can_read() -> bool:
        has_lock.set()
        may_go_on.wait(20)
        return False

    line.connection.can_read = can_read
    thread = Thread(target=line.is_at_hand)
    thread.start()
    assert has_lock.wait(20)
    Timer(0.1, may_go_on.set).start()
    assert line.try_call_all([("ECHO", "waits")]) == [b"waits"]
    thread.join()


@pytest.mark.parametrize("use", ["call", "lend", "ack"])
def test_a_server_that_cannot_be_connected_to_is_tried_once(use: str) -> None:
    """One that is silent would cost ``socket_connect_timeout`` for each try."""
    with socket.create_server((HOST, 0)) as hangs_up:
        accepted: list[int] = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = hangs_up.accept()
                    accepted.append(1)
                    client.close()

        Thread(target=accept, daemon=True).start()
        # Connecting takes a reply.
        line = Line(lambda: Connection(host=HOST, port=hangs_up.getsockname()[1], db=1))
        if use == "ack":
            line.ack(ack())
        else:
            with pytest.raises(ConnectionError):
                line.call("PING") if use == "call" else line.lend()
        assert len(accepted) == 1
        hangs_up.shutdown(socket.SHUT_RDWR)
