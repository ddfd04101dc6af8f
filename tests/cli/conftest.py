"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.redis_server import RedisServer
from tests.cli.site import Site


@pytest.fixture
def site(server: RedisServer) -> Iterator[Site]:
    site = Site(server)
    yield site
    site.close()
