"""What more than one package of tests needs: a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.redis_server import RedisServer


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
