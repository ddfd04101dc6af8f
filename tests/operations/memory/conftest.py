"""An app that may look at all keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery
from kombu import pools

from tools.harness.redis_server import RedisServer


@pytest.fixture
def app(server: RedisServer) -> Iterator[Celery]:
    """As a user that may look at all keys."""
    pools.reset()
    app = Celery("api", broker=server.url(), backend=server.url("redis"), set_as_current=False)
    yield app
    app.close()
