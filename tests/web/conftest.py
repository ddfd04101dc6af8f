"""A broker with messages in each state, and somebody who looks at its page, with a browser or without."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import TYPE_CHECKING

import pytest

from kombu_redisdelay.web import confirming, create, questions, works
from kombu_redisdelay.web.works import Work
from tests.cli.site import Site
from tests.web.states import LONG, messages_in_each_state
from tests.web.viewer import Viewer
from tools.harness.redis_server import RedisServer

if TYPE_CHECKING:
    # It need not be installed.
    from selenium.webdriver import Chrome


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine needs a second for is done before the next page, too."""
    monkeypatch.setattr(confirming, "DIRECT", 20.0)
    monkeypatch.setattr(works, "LONGEST_SEARCH", 60.0)
    monkeypatch.setattr(works, "PATIENCE", 30.0)
    monkeypatch.setattr(questions, "LONGEST_LOOK", 60.0)


@pytest.fixture
def site(server: RedisServer) -> Iterator[Site]:
    site = Site(server)
    yield site
    site.close()


@pytest.fixture
def viewer(site: Site) -> Iterator[Viewer]:
    viewer = Viewer(site.app)
    yield viewer
    viewer.close()


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Has an action wait after each step until the event is set; so it is done in the background."""
    go_on = Event()
    tell = Work.tell

    def tell_and_wait(work: Work, count: int) -> None:
        work.count = count
        if count:
            go_on.wait(60)
        tell(work, count)

    monkeypatch.setattr(Work, "tell", tell_and_wait)
    monkeypatch.setattr(confirming, "DIRECT", 0.2)
    yield go_on
    go_on.set()


@pytest.fixture(scope="session")
def browser() -> Iterator[Chrome]:
    from tools.harness.browser import chromium

    with chromium() as driver:
        yield driver


@pytest.fixture
def driver(browser: Chrome) -> Chrome:
    """Without the page of the test before, which goes on asking its server, and what was said of it."""
    browser.get("about:blank")
    browser.get_log("browser")
    return browser


@pytest.fixture
def url(site: Site, driver: Chrome) -> Iterator[str]:
    """The address of a page with messages in each state."""
    from tools.harness.browser import scheme, served, size

    messages_in_each_state(site)
    app = create(site.app, arguments="all")
    app.state.site.queues.pause(LONG)
    app.state.site.queues.limit("celery", rate="10/s")
    size(driver, 1280, 800)
    scheme(driver, "light")
    with served(app) as address:
        yield address
    app.state.site.close()
