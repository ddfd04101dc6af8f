"""The proxy harms the connections of those whom it is told to."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tools.harness.process import wait_until
from tools.harness.proxy import HOST, Proxy
from tools.harness.redis_server import RedisServer
from tools.harness.replaced import Replaced

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


def asks(connection: socket.socket, *commands: str) -> list[bytes]:
    """The replies, line by line, to commands that are sent together."""
    connection.settimeout(10)
    packed = []
    for words in map(str.split, commands):
        packed.append(f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words))
    connection.sendall("".join(packed).encode())
    reply = b""
    while reply.count(b"\r\n") < len(commands):
        reply += connection.recv(1000)
    return reply.splitlines()


def test_commands_are_refused_and_the_server_does_not_get_them(proxy: Proxy, server: RedisServer) -> None:
    with connected(proxy, HOST) as one, connected(proxy, OTHER) as other, server.client() as client:
        client.delete("key")
        proxy.refuse("LOADING as we say", [HOST])
        refused = b"-LOADING as we say"
        assert asks(one, "INCR key", "PING") == [refused, refused]
        assert asks(one, "CLIENT GETNAME", "GET key")[-1] == refused
        assert asks(other, "PING") == [b"+PONG"]
        with connected(proxy, HOST) as later:
            assert asks(later, "INCR key") == [refused]
        assert client.get("key") is None
        proxy.serve()
        assert asks(one, "INCR key", "PING") == [b":1", b"+PONG"]


def test_a_command_that_waits_is_not_refused_and_the_one_behind_it_is(
    proxy: Proxy, server: RedisServer
) -> None:
    with connected(proxy, HOST) as one, server.client() as client:
        one.sendall(b"*3\r\n$5\r\nBLPOP\r\n$4\r\nlist\r\n$1\r\n0\r\n")
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, 30, "that it waits")
        proxy.refuse("BUSY as we say")
        one.sendall(b"*1\r\n$4\r\nPING\r\n")
        client.rpush("list", "found")
        one.settimeout(10)
        reply = b""
        while not reply.endswith(b"-BUSY as we say\r\n"):
            reply += one.recv(1000)
        assert reply.splitlines()[-2:] == [b"found", b"-BUSY as we say"]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_what_comes_in_pieces(cut: int) -> None:
    replaced = Replaced()
    request = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" * 2
    sent = replaced.requests(request[:cut], "OOM", ()) + replaced.requests(request[cut:], "OOM", ())
    assert sent.count(b"ECHO") == 2
    answered = b":1\r\n" + sent.replace(b"*2\r\n$4\r\nECHO\r\n", b"") + b":2\r\n"
    told = replaced.replies(answered[:cut]) + replaced.replies(answered[cut:])
    assert told == b":1\r\n-OOM\r\n-OOM\r\n:2\r\n"
    assert replaced.rest() == b""


def test_it_leads_to_another_server(proxy: Proxy) -> None:
    with RedisServer() as another, another.client() as client, connected(proxy, HOST) as before:
        assert answers(before)
        client.set("none", "other")
        proxy.lead_to(another.port)
        with connected(proxy, HOST) as after:
            assert asks(after, "STRLEN none") == [b":5"]
        assert asks(before, "STRLEN none") == [b":0"]
