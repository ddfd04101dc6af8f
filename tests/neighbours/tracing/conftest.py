"""What the tests of the page share: its files, and what the tools talk to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.page import DOCS
from tests.neighbours.extensions.shop import Shop
from tests.neighbours.tracing.collector import Collector
from tools.harness.redis_server import RedisServer


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def shop(server: RedisServer, tmp_path: Path, collector: Collector) -> Iterator[Shop]:
    shop = Shop(tmp_path, server, DOCS / "neighbours-tracing.rst")
    shop.environment.update(collector.environment)
    yield shop
    shop.close()
