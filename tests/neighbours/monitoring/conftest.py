"""What the tests of the page share: a folder with its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.page import DOCS
from tests.neighbours.extensions.shop import Shop
from tools.harness.redis_server import RedisServer


@pytest.fixture
def shop(server: RedisServer, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, server, DOCS / "neighbours-monitoring.rst")
    yield shop
    shop.close()
