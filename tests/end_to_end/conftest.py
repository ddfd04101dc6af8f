"""What the end-to-end tests share: producers, workers and a ledger for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import pools

from tests.end_to_end.installation import Installation
from tests.environments import HAS_CLUSTERS
from tools.harness.redis_server import RedisServer

#: What differs with redis-py only: with the oldest and the newest.
collect_ignore = [] if HAS_CLUSTERS else ["test_tls.py"]


@pytest.fixture
def site(server: RedisServer, tmp_path: Path) -> Iterator[Installation]:
    # A test may kill all connections to the server, also those that producers of this process keep.
    pools.reset()
    with Installation(server, tmp_path) as site:
        yield site
