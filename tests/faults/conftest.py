"""What the tests of faults share: kombu or workers on a server, and a proxy in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.installation import Installation
from tools.harness.proxy import Proxy
from tools.harness.redis_server import RedisServer


@pytest.fixture
def installation(server: RedisServer, tmp_path: Path) -> Iterator[Installation]:
    """For workers."""
    with Installation(server, tmp_path) as installation:
        yield installation


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy
