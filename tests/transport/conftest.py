"""Plain kombu on one server, and on a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from kombu_redisdelay.broker import waits
from kombu_redisdelay.transport.transports import Transport
from tests.environments import CLUSTERS, HAS_CLUSTERS, SERVER
from tests.transport.batching import celery_app
from tests.transport.kit import LONG_POLL, Site
from tools.harness import trouble
from tools.harness.proxy import Proxy
from tools.harness.redis_server import RedisServer

collect_ignore = [] if HAS_CLUSTERS else ["test_cluster.py"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "site" in metafunc.fixturenames:
        is_for_one = metafunc.definition.get_closest_marker("one_server")
        metafunc.parametrize("site", [SERVER] if is_for_one else [SERVER, *CLUSTERS], indirect=True)


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """One server, as for other tests, or a cluster."""
    if request.param == SERVER:
        yield request.getfixturevalue("single_site")
    else:
        yield request.getfixturevalue("cluster_site")


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    """One that may be harmed."""
    with RedisServer(args=trouble.WITH_USER) as server:
        yield server


@pytest.fixture
def proxy(own_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(own_server.port) as proxy:
        yield proxy


@pytest.fixture
def site_of_user(own_server: RedisServer, proxy: Proxy) -> Iterator[Site]:
    """For a user that may be refused something, and through the proxy."""
    with own_server.client() as client:
        client.flushall()
        site = Site(trouble.url_of_user(proxy.port), client)
        yield site
        site.close()
    assert not waits.current()


@pytest.fixture
def long_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for messages ends by itself only when a test has lost its patience: a message that comes was
    noticed. To ask how long it took would ask how busy the machine is."""
    monkeypatch.setattr(Transport, "brpop_timeout", LONG_POLL)


@pytest.fixture
def app(site: Site) -> Iterator[Celery]:
    app = celery_app(site.url)
    yield app
    app.close()
