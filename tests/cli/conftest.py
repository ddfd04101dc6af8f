"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import _state

from tests.cli.site import QUEUE, Site, bury_long_ago, payload
from tests.failed import keep_failed
from tools.harness.redis_server import RedisServer


@pytest.fixture
def site(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    # Tasks that tests of other folders have made are tasks of every later app otherwise.
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    site = Site(server)
    yield site
    site.close()


@pytest.fixture(scope="module")
def shared_good_server() -> Iterator[RedisServer]:
    """As the doctor wants it."""
    with RedisServer(appendonly=True, args=("--maxmemory", "256mb")) as server:
        yield server


@pytest.fixture
def good_server(shared_good_server: RedisServer) -> RedisServer:
    """The same, with nothing in it."""
    with shared_good_server.client() as client:
        client.flushall()
    return shared_good_server


@pytest.fixture
def taken(site: Site) -> Iterator[str]:
    """The id of a message that this process holds."""
    task_id = site.send()
    with site.app.connection_for_read() as connection:
        assert connection.channel().basic_get(QUEUE).headers["id"] == task_id
        yield task_id


@pytest.fixture
def in_each_state(site: Site, taken: str) -> dict[str, str]:
    """State -> the id of a message in that state."""
    keep_failed(site.store, QUEUE, "the failed one", payload("the failed one"), "shop.close_order")
    site.bury(payload("the dead one"), "rejected")
    kept = {"failed": "the failed one", "dead": "the dead one"}
    return {"scheduled": site.send(countdown=3600), "ready": site.send(), "unacked": taken, **kept}


@pytest.fixture
def full(site: Site) -> Site:
    """In three queues a scheduled message and a dead letter of each of two tasks."""
    for hours, queue in enumerate(("a", "b", "c"), 1):
        for task in ("shop.close", "mail.send"):
            site.send(task, queue=queue, task_id=f"{queue} {task}", countdown=3600 * hours)
            bury_long_ago(site, f"{queue} {task}", task, hours, queue)
    return site
