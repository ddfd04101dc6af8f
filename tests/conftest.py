"""What more than one package of tests needs: a real server, and plain kombu on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.redis_server import RedisServer
from tests.channel.kit import Site
from tests.permissions import allow, documented_rules, refused


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RedisServer]:
    """A server for all tests that leave it running; see `server`."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """A server with nothing in it."""
    with shared_server.client() as client:
        client.flushall()
    return shared_server


@pytest.fixture
def site(server: RedisServer) -> Iterator[Site]:
    """For plain kombu. Its connections may do what is documented, with whatever queues and exchanges."""
    url = allow(server, *documented_rules("*"), "allchannels")
    with server.client() as client:
        site = Site(url, client)
        yield site
        site.close()
    assert refused(server) == []
