"""A site for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.redis_server import RedisServer
from tests.channel.kit import Site


@pytest.fixture
def site(server: RedisServer) -> Iterator[Site]:
    with server.client() as client:
        site = Site(server.url(), client)
        yield site
        site.close()
