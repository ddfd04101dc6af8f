"""The API on a site."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery
from kombu import pools

from kombu_redisdelay import Messages
from tests.environments import HAS_CLUSTERS
from tests.operations.stock import Place
from tests.transport.kit import Site
from tools.harness.redis_server import RedisServer

collect_ignore = [] if HAS_CLUSTERS else ["test_cluster.py"]


@pytest.fixture
def app(site: Site) -> Iterator[Celery]:
    app = Celery("api", broker=site.url, backend="cache+memory://", set_as_current=False)
    # Its producers are kombu's, which outlive it, and believe to have noted their queues in Redis.
    pools.reset()
    # All backends of this kind in a process have the same memory.
    app.backend.client.cache.clear()
    yield app
    app.close()


@pytest.fixture
def messages(app: Celery) -> Iterator[Messages]:
    with Messages(app) as messages:
        yield messages


@pytest.fixture
def delayed(app: Celery) -> Iterator[Messages]:
    with Messages(app) as delayed:
        yield delayed


@pytest.fixture
def dead(app: Celery) -> Iterator[Messages]:
    with Messages(app) as dead:
        yield dead


@pytest.fixture
def place(server: RedisServer) -> Iterator[Place]:
    """What stock workers have left on a server."""
    place = Place(server)
    yield place
    place.redis.close()
