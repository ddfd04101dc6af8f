"""What more than one package of tests needs: a real server, and plain kombu on it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from itertools import takewhile
from pathlib import Path

import kombu.transport
import pytest
from redis.cluster import RedisCluster

from kombu_redisdelay import use_for_redis_urls
from kombu_redisdelay.registration import TAKEN_OVER
from kombu_redisdelay.transport import bindings, transports, urls
from tests.environments import CLUSTER, ENVIRONMENT, TESTS, THOROUGH, WITHOUT, runs_here
from tests.permissions import allow, documented_rules, refused
from tests.search import may_search_for_long, seed, set_up
from tests.transport.kit import Site
from tools.harness.cluster import Cluster
from tools.harness.redis_server import RedisServer
from tools.harness.server_binary import servers, wanted

# redis-py asks for its own version whenever it makes a connection, which reads a file: an eighth of the time
# that tests take in this process.
metadata.version = cache(metadata.version)

set_up()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return None if runs_here(collection_path) else True


def pytest_collection(session: pytest.Session) -> None:
    """Have no garbage looked for while nearly all that is made stays. In a checkout that is new, each process
    of xdist begins to import the tests at another place; else all of them would compile each module at the
    same time."""
    gc.disable()
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if not count or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    ignored = [session.config.rootpath / each for each in session.config.getoption("ignore") or ()]
    files = [
        path
        for path in sorted(TESTS.rglob("test_*.py"))
        if runs_here(path) and not any(map(path.is_relative_to, ignored))
    ]
    for path in files[number * len(files) // count : (number + 1) * len(files) // count]:
        # What is wrong with it is told when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs elsewhere. One process has all tests on a cluster, and one all in a browser. These
    begin first: nothing else is left for the other processes at the end."""
    left_out = [item for item in items if any(map(item.get_closest_marker, WITHOUT))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if "shared_cluster" in getattr(item, "fixturenames", ()) or CLUSTER in parameters:
            item.add_marker(pytest.mark.xdist_group(CLUSTER))
        elif "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("browser"))
        if getattr(getattr(item, "function", None), "is_hypothesis_test", False):
            item.add_marker(may_search_for_long)
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    seed(f"{item.path.name}::{item.name}")


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what stays until the end: a tenth of the time of all tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_report_header() -> list[str]:
    try:
        found = servers()
    except RuntimeError as error:
        raise pytest.UsageError(str(error)) from None
    return [f"servers: {', '.join(map(str, found))}", f"tests of the {ENVIRONMENT} environment", *_replaced()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _replaced():
        terminalreporter.line(line, yellow=True)
    if THOROUGH in WITHOUT:
        terminalreporter.line("left to `tox -e thorough`: the tests that are marked so, and more examples")


def _replaced() -> list[str]:
    """What to say if the server that should be tested is not here, and another one took its place."""
    [used, *_] = servers()
    missing = list(takewhile(lambda name: name != used.name, wanted()))
    return [f"not here: {', '.join(missing)}; tested on {used} instead"] if missing else []


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RedisServer]:
    """A server for all tests that leave it running; see `server`."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """A cluster for all tests that leave it running; see `cluster`."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster_client(shared_cluster: Cluster) -> Iterator[RedisCluster]:
    """For what a test looks at. redis-py reads the description of each command when it makes one: 0.1 s."""
    with shared_cluster.client() as client:
        yield client


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """A cluster with nothing in it."""
    shared_cluster.flush()
    return shared_cluster


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """A server with nothing in it."""
    with shared_server.client() as client:
        client.flushall()
    return shared_server


@pytest.fixture(autouse=True)
def begins_anew() -> None:
    """A test is a process that has declared nothing yet: what another one had declared would come back, since
    its keys have vanished. Nor has it waited in vain for a server that another test had made refuse."""
    bindings._declared.clear()
    transports._patience.clear()


@pytest.fixture
def site(single_site: Site) -> Site:
    return single_site


@pytest.fixture
def single_site(server: RedisServer) -> Iterator[Site]:
    """For plain kombu. Its connections may do what is documented, with whatever queues and exchanges."""
    url = allow(server, *documented_rules("*"), "allchannels")
    with server.client() as client:
        site = Site(url, client)
        yield site
        site.close()
    assert refused(server) == []


@pytest.fixture
def cluster_site(cluster: Cluster, cluster_client: RedisCluster) -> Iterator[Site]:
    before = cluster.errors()["CROSSSLOT"]
    site = Site(cluster.url(), cluster_client, cluster)
    yield site
    site.close()
    assert cluster.errors()["CROSSSLOT"] == before


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For this test, ``redis://`` and its like are ours."""
    found = TAKEN_OVER.keys()
    aliases = {scheme: kombu.transport.TRANSPORT_ALIASES[scheme] for scheme in found}
    monkeypatch.setattr(urls, "_told", set())
    use_for_redis_urls()
    yield
    kombu.transport.TRANSPORT_ALIASES.update(aliases)
    for scheme in found:
        kombu.transport._transport_cache.pop(scheme, None)
