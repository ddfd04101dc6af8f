"""What the tests of the page share: a folder with its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.redis_server import RedisServer
from tests.neighbours.extensions.shop import Shop


@pytest.fixture
def shop(server: RedisServer, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, server)
    yield shop
    shop.close()
