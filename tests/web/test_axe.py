"""No page has a barrier that axe-core finds."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

from kombu_redisdelay.web import create
from tests.cli.site import Site
from tests.environments import THOROUGH, WITHOUT
from tests.web.states import LONG, PAGES
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

# Neither need be installed, and the second one needs Python 3.12.
pytest.importorskip("selenium")
pytest.importorskip("axe_selenium_python")

from axe_selenium_python import Axe
from selenium import webdriver
from selenium.webdriver.common.by import By

from tools.harness.browser import click, missing, scheme, seen, served, size

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"no browser: {missing()}")

#: What WCAG 2.2 asks for on the levels A and AA, and what axe-core advises beyond that.
EVERYTHING = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
COLOURS = ["color-contrast"]

#: Width, colours, rules. Colours change nothing but colours, and those are the same at each width, where
#: test_browser.py looks at them, too.
VIEWS = (
    (360, "dark", EVERYTHING),
    (1280, "light", EVERYTHING),
    (360, "light", COLOURS),
    (1280, "dark", COLOURS),
)


def barriers(driver: webdriver.Chrome, turn: int) -> list[str]:
    """What axe-core finds on a page, on a telephone and on a screen, light and dark.

    Arguments:
        turn: the pages of a test look alike in many parts. So they take turns with the first two views, and
            only ``tox -e thorough`` has all views of each.
    """
    axe: Any = Axe(driver)
    axe.inject()
    found = []
    for width, colours, rules in [VIEWS[turn % 2]] if THOROUGH in WITHOUT else VIEWS:
        size(driver, width, 800)
        scheme(driver, colours)
        results = axe.run(options={"runOnly": rules, "resultTypes": ["violations"]})
        assert results["passes"], "axe-core has looked at nothing"
        found += [
            f"{width} {colours} {wrong['id']}: {node['html']}"
            for wrong in results["violations"]
            for node in wrong["nodes"]
        ]
    return found


def test_each_page(driver: webdriver.Chrome, url: str) -> None:
    found = []
    for turn, path in enumerate(PAGES):
        driver.get(url + path)
        found += [f"{path}: {barrier}" for barrier in barriers(driver, turn)]
    assert found == []


def test_an_empty_broker(driver: webdriver.Chrome, site: Site) -> None:
    app = create(site.app)
    with served(app) as url:
        found = []
        # On the pages of test_each_page, it is the turn of the others.
        for turn, path in enumerate(("/", "/messages"), 1):
            driver.get(url + path)
            found += barriers(driver, turn)
    app.state.site.close()
    assert found == []


def test_an_action(driver: webdriver.Chrome, url: str) -> None:
    """The question before it, what a mistake in it looks like, and what was done."""

    def press(selector: str, then: str) -> None:
        click(driver, selector)
        wait_until(lambda: seen(driver, then), 20, f"that {selector} leads to {then}")

    driver.get(f"{url}/messages")
    click(driver, "input[value^='s1 ']")
    press("button[value=reschedule]", "form.confirm")
    found = barriers(driver, 0)
    driver.find_element(By.NAME, "time").send_keys("soon")
    press("[name=confirmed]", "main [role=alert]")
    found += barriers(driver, 1)
    driver.find_element(By.NAME, "time").clear()
    driver.find_element(By.NAME, "time").send_keys("2h")
    press("[name=confirmed]", "[role=status]")
    found += barriers(driver, 2)
    driver.get(f"{url}/messages")
    click(driver, "input[value^='s2 ']")
    press("button[value=cancel]", "form.confirm")
    found += barriers(driver, 3)
    driver.get(f"{url}/queue?name=celery")
    press("button[value=limit]", "form.confirm")
    found += barriers(driver, 4)
    # About keys: one with an ugly name among them.
    driver.get(f"{url}/keys?name={LONG}")
    click(driver, "thead [data-select-all]")
    press("button[value=limit-key]", "form.confirm")
    found += barriers(driver, 5)
    assert found == []


def test_what_takes_long(driver: webdriver.Chrome, url: str, held_back: Event) -> None:
    """While it is done, and after it."""
    driver.get(f"{url}/messages?task=shop.*&before=3d")
    click(driver, "button[value=cancel-all]")
    wait_until(lambda: seen(driver, "form.confirm"), 60, "the question")
    click(driver, "[name=confirmed]")
    wait_until(lambda: seen(driver, "button[name=stop]"), 60, "the page of it")
    found = barriers(driver, 0)
    held_back.set()
    wait_until(lambda: seen(driver, "#outcome"), 60, "the end")
    found += barriers(driver, 1)
    driver.get(f"{url}/work?id=nothing")
    found += barriers(driver, 2)
    assert found == []


def test_redis_is_away(driver: webdriver.Chrome) -> None:
    with RedisServer() as server:
        site = Site(server)
        app = create(site.app)
        server.stop()
        with served(app) as url:
            driver.get(url)
            assert seen(driver, "h1") == "Redis does not answer as it should"
            found = barriers(driver, 0)
            # It was there when the page was opened.
            server.start()
            wait_until(lambda: seen(driver, "h1") == "Queues", 60, "that it is back")
            server.stop()
            wait_until(lambda: seen(driver, "[role=alert]"), 60, "that the page says so")
            found += barriers(driver, 1)
        app.state.site.close()
        site.close()
    assert found == []
