"""The proxy harms the connections of those whom it is told to."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tools.harness.proxy import HOST, Proxy
from tools.harness.redis_server import RedisServer

OTHER = "127.0.0.2"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@contextmanager
def connected(proxy: Proxy, origin: str) -> Iterator[socket.socket]:
    with closing(socket.create_connection((HOST, proxy.port), 10, (origin, 0))) as connection:
        yield connection


def answers(connection: socket.socket, patience: float = 10) -> bool:
    connection.settimeout(patience)
    try:
        connection.sendall(b"PING\r\n")
        return connection.recv(100) == b"+PONG\r\n"
    except TimeoutError:
        return False


def test_silence_of_some(proxy: Proxy) -> None:
    with connected(proxy, HOST) as one, connected(proxy, OTHER) as other:
        assert answers(one)
        assert answers(other)
        proxy.go_silent([OTHER])
        assert answers(one)
        assert not answers(other, 0.2)
        with connected(proxy, OTHER) as later, connected(proxy, HOST) as spared:
            assert not answers(later, 0.2)
            assert answers(spared)
        proxy.pass_on()
        assert not answers(other, 0.2), "it stays half-open"
        with connected(proxy, OTHER) as later:
            assert answers(later)


def test_a_reset_of_some(proxy: Proxy) -> None:
    with connected(proxy, HOST) as one, connected(proxy, OTHER) as other:
        assert answers(one)
        assert answers(other)
        proxy.reset([OTHER])
        assert answers(one)
        with pytest.raises(ConnectionError):
            answers(other)


def test_a_delay_of_some(proxy: Proxy) -> None:
    with connected(proxy, HOST) as one, connected(proxy, OTHER) as other:
        proxy.delay(20, [OTHER])
        assert answers(one)
        assert not answers(other, 0.2)
