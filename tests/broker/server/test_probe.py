"""Which servers answer is asked of their sockets, however busy this process is."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from errno import EINPROGRESS, EWOULDBLOCK
from selectors import DefaultSelector
from typing import Any

import pytest

from kombu_redisdelay.broker.server import probe
from kombu_redisdelay.broker.server.probe import GRACE, answering
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy
from tools.harness.redis_server import HOST, RedisServer

WITHIN = 0.02

#: Seconds in which even a busy machine answers.
LOOK_UP = 0.5


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """The address of a server that accepts connections, and says nothing."""
    with socket.create_server((HOST, 0)) as listening:
        yield listening.getsockname()


@pytest.fixture
def gone() -> tuple[str, int]:
    """The address of a server that has ended."""
    with socket.create_server((HOST, 0)) as listening:
        address: tuple[str, int] = listening.getsockname()
    return address


@pytest.fixture
def proxy(shared_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(shared_server.port) as proxy:
        yield proxy


class OfWindows(socket.socket):
    """Says that it connects in the words of Windows."""

    def connect_ex(self, address: Any) -> int:
        said = super().connect_ex(address)
        return EWOULDBLOCK if said == EINPROGRESS else said


class Busy(DefaultSelector):
    """Others keep the process before each look at the sockets: for longer than a server may take, and until
    one of these has done its part."""

    def select(self, timeout: float | None = None) -> Any:
        time.sleep(2 * WITHIN)
        wait_until(lambda: super(Busy, self).select(0), 30, "a server")
        return super().select(timeout)


@pytest.mark.parametrize("over_tls", [False, True])
def test_those_that_answer(
    shared_server: RedisServer, silent: tuple[str, int], gone: tuple[str, int], over_tls: bool
) -> None:
    there = (HOST, shared_server.port)
    # Over TLS, nothing is said.
    found = {there, silent} if over_tls else {there}
    assert set(answering([gone, silent, there], within=5, over_tls=over_tls)) == found
    assert answering([gone], within=5, over_tls=over_tls) == []


def test_one_that_is_gone_does_not_hasten_the_others(proxy: Proxy, gone: tuple[str, int]) -> None:
    """It refuses at once, which is no answer."""
    far_away = (HOST, proxy.port)
    proxy.delay(4 * GRACE)
    assert answering([gone, far_away], within=5) == [far_away]


def test_one_that_is_silent_is_waited_for_as_long_as_it_may_take(silent: tuple[str, int]) -> None:
    began = time.monotonic()
    assert answering([silent], within=0.2) == []
    assert time.monotonic() - began >= 0.2


def test_a_busy_process_looks_once_more(shared_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "DefaultSelector", Busy)
    there = (HOST, shared_server.port)
    assert answering([there], WITHIN) == [there]


def test_looking_up_a_name_is_none_of_the_time_of_a_server(
    shared_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(LOOK_UP)
        return look_up(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    there = (HOST, shared_server.port)
    assert answering([there], within=LOOK_UP / 2) == [there]


GREENLETS = """
import sys, time
block = time.sleep
import {library}
{patch}
from kombu_redisdelay.broker.server.probe import answering

host, port, within, stretch = sys.argv[1], *map(float, sys.argv[2:])

def occupy():
    while True:
        block(stretch)
        {library}.sleep(0)

{library}.spawn(occupy)
assert answering([(host, int(port))], within) == [(host, int(port))]
"""


@pytest.mark.parametrize(
    ("library", "patch", "stretches"),
    [
        # It lets others run 50 times before it looks at its sockets.
        ("gevent", "from gevent import monkey; monkey.patch_all()", 50),
        pytest.param("eventlet", "eventlet.monkey_patch()", 1, marks=pytest.mark.thorough),
    ],
)
def test_a_process_whose_greenlets_leave_no_time(
    shared_server: RedisServer, library: str, patch: str, stretches: int
) -> None:
    within = 0.2
    script = GREENLETS.format(library=library, patch=patch)
    numbers = map(str, (shared_server.port, within, 1.5 * within / stretches))
    command = [sys.executable, "-c", script, HOST, *numbers]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_a_connection_that_windows_begins(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", OfWindows)
    assert answering([(HOST, proxy.port)], within=5) == [(HOST, proxy.port)]
