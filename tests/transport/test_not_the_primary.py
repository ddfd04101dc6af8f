"""A server that becomes a replica. For an error of any other kind, Celery would end the worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_redisdelay.broker.server.wire import NotThePrimary
from tests.transport.kit import Inbox, Site, drain, publish
from tools.harness.redis_server import RedisServer

pytestmark = pytest.mark.one_server


@pytest.fixture(params=["tcp", "socket"])
def url(request: pytest.FixtureRequest, site: Site, server: RedisServer) -> Iterator[str]:
    yield site.url if request.param == "tcp" else f"redisdelay+socket://{server.socket}"
    site.redis.replicaof("NO", "ONE")


@pytest.mark.parametrize("headers", [{}, {"x-delay": 1000}])
def test_publishing(site: Site, url: str, headers: dict[str, int]) -> None:
    channel = site.connect(url).channel()
    publish(channel, "a")
    site.redis.replicaof("127.0.0.1", 1)
    with pytest.raises(NotThePrimary, match="is not the primary"):
        publish(channel, "b", headers=headers)


def test_waiting(site: Site, url: str) -> None:
    connection = site.connect(url)
    inbox = Inbox(connection.channel())
    drain(connection, lambda: site.redis.info("clients")["blocked_clients"])
    site.redis.replicaof("127.0.0.1", 1)
    with pytest.raises(NotThePrimary, match=r"is not the primary: UNBLOCKED") as caught:
        drain(connection, lambda: False)
    assert isinstance(caught.value, connection.connection_errors)
    site.redis.replicaof("NO", "ONE")
    connection.collect()
    again = Inbox(connection.channel())
    publish(connection.channel(), "after")
    drain(connection, lambda: len(again) == 1)
    assert len(inbox) == 0


def test_binding_a_queue(site: Site, url: str) -> None:
    """A worker does that when it connects again."""
    connection = site.connect(url)
    channel = connection.channel()
    site.redis.replicaof("127.0.0.1", 1)
    with pytest.raises(RedisConnectionError, match="is not the primary"):
        channel._queue_bind("exchange", "key", "", "q")


def test_a_server_that_is_silent_is_named(site: Site, server: RedisServer) -> None:
    channel = site.channel(socket_timeout=0.2)
    publish(channel, "a")
    site.redis.client_pause(60_000, all=False)
    try:
        with pytest.raises(RedisTimeoutError, match=f"no reply from 127.0.0.1:{server.port}: "):
            publish(channel, "b")
    finally:
        site.redis.client_unpause()
