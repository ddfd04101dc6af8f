"""The way to the server: replies belong to those who asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.pool import Pool
from kombu_redisdelay.broker.server.single import Client
from tests.broker.rig import Rig


class SoftTimeLimit(BaseException):
    """Raised by a signal, anywhere."""


@pytest.fixture
def client(rig: Rig) -> Iterator[Client]:
    # Of one who may do anything.
    client = Client(Pool.like(rig.client.connection_pool))
    client.call("SET", "a", "1")
    client.call("SET", "b", "2")
    yield client
    client.disconnect()


def test_the_replies_come_in_order(client: Client) -> None:
    assert client.call_all(("GET", "a"), ("GET", "none"), ("GET", "b")) == [b"1", None, b"2"]


@pytest.mark.parametrize("in_use", [False, True])
def test_an_error_is_the_reply_of_its_command(client: Client, in_use: bool) -> None:
    # By another thread: then it goes over a further connection.
    with client.line._lock if in_use else nullcontext():
        first, refused, last = client.call_all(("GET", "a"), ("LPUSH", "b", "1"), ("GET", "b"))
    assert (first, last) == (b"1", b"2")
    assert isinstance(refused, ResponseError)


@pytest.mark.parametrize("replies_read", [0, 1])
def test_an_interrupted_call_leaves_no_reply_to_the_next(
    client: Client, monkeypatch: pytest.MonkeyPatch, replies_read: int
) -> None:
    own = client.line.connection
    read_response, count = own.read_response, iter(range(replies_read))

    def interrupted() -> object:
        if next(count, None) is None:
            raise SoftTimeLimit
        return read_response()

    with monkeypatch.context() as patch:
        patch.setattr(own, "read_response", interrupted)
        with pytest.raises(SoftTimeLimit):
            client.call_all(("GET", "a"), ("GET", "a"))
    assert client.call("GET", "b") == b"2"


def test_a_connection_that_is_lent_and_comes_back_is_kept(client: Client) -> None:
    before = client.line.connection
    assert client.ping()
    assert client.line.connection is before


def test_one_that_never_comes_back_stops_nobody(client: Client) -> None:
    """A signal may raise between getting a connection and using it."""
    lent = client.pool.get_connection("_")
    assert client.call("GET", "a") == b"1"
    client.line.call("GET", "b")
    client.line.ack("q", "a hash", "tag")
    client.line.confirm_acks()
    kept = client.line.connection
    client.pool.release(lent)
    assert client.line.connection is kept, "the one in use stays"
    assert client.call("GET", "b") == b"2"
