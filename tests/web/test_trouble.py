"""The page while the server refuses: it shows what can be read, and says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.site import Site
from tests.web.states import PAGES, messages_in_each_state
from tests.web.viewer import Viewer
from tools.harness import trouble
from tools.harness.redis_server import RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def viewer(site: Site, server: RedisServer) -> Iterator[Viewer]:
    site.redis.flushall()
    messages_in_each_state(site)
    viewer = Viewer(site.app)
    yield viewer
    viewer.close()


def forget(viewer: Viewer) -> None:
    """Have nothing shown that was kept for some seconds."""
    site = viewer.app.state.site
    for kept in (site.findings, site.memory, site.fleet, site.hours, site.failures):
        kept.forget()


def test_all_pages_show_what_can_be_read(viewer: Viewer, server: RedisServer) -> None:
    before = {path: viewer.open(path).status for path in PAGES}
    with trouble.misconf(server):
        forget(viewer)
        assert {path: viewer.open(path).status for path in PAGES} == before
        assert "the last snapshot failed, and Redis writes nothing" in viewer.open("/doctor").text
    with trouble.busy(server):
        for path in (path for path, status in before.items() if status == 200):
            forget(viewer)
            page = viewer.open(path)
            assert (page.status, page.heading) == (503, "Redis does not answer as it should"), path
            assert "a script keeps Redis busy" in page.text
            assert "SCRIPT KILL" in page.text
    assert viewer.open("/").status == 200


def test_what_is_refused_is_said_and_not_done(
    viewer: Viewer, server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kombu_redisdelay.web")
    viewer.open("/messages", queue="celery")
    viewer.press("Cancel all")
    scheduled = site.redis.zcard(site.store.keys("celery").schedule)
    with trouble.misconf(server):
        page = viewer.press("Cancel all")
        assert page.status == 503
        assert "It failed. A part of it may be done. Redis could not save its data to the disk" in page.text
    assert "failed, a part of it may be done: Redis could not save its data" in caplog.text
    assert site.redis.zcard(site.store.keys("celery").schedule) == scheduled
