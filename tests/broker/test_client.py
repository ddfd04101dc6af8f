"""The way to the server: replies belong to those who asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.client import Client
from kombu_redisdelay.broker.pool import Pool
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
    lent = client.line.lend() if in_use else None
    first, refused, last = client.call_all(("GET", "a"), ("LPUSH", "b", "1"), ("GET", "b"))
    if lent is not None:
        client.line.take_back()
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
