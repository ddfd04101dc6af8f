"""The page in a real browser."""

from __future__ import annotations

import time

import pytest

from harness.process import wait_until
from tests.cli.site import Site
from tests.web.states import PAGES

# The browser's driver need not be installed.
pytest.importorskip("selenium")

from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.web.browser import NAMELESS, PALE, missing, run, scheme, seen, size, wait_for

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"no browser: {missing()}")


def complaints(driver: webdriver.Chrome) -> list[str]:
    """What the browser has to say, but that a page with an error has one."""
    return [
        entry["message"]
        for entry in driver.get_log("browser")
        if "Failed to load resource: the server responded with a status of 40" not in entry["message"]
    ]


def wait_for_update(driver: webdriver.Chrome) -> None:
    """Wait until the page has brought itself up to date."""
    before = seen(driver, "#live time", "dateTime")
    wait_until(lambda: seen(driver, "#live time", "dateTime") != before, 20, "that it updates")


def test_each_page_is_sound(driver: webdriver.Chrome, url: str) -> None:
    """No complaints of the browser, names for screen readers, contrast, and no page wider than its window."""
    driver.get_log("browser")
    wrong: list[tuple[str, ...]] = []
    for path in PAGES:
        for width in (360, 1280, 3840):
            size(driver, width, 800)
            driver.get(url + path)
            wide = run(driver, "return document.documentElement.scrollWidth")
            if wide > width:
                wrong.append((path, f"{wide} wide in a window of {width}"))
        for colours in ("light", "dark"):
            scheme(driver, colours)
            wrong += [(path, colours, each) for each in run(driver, PALE)]
        wrong += [(path, each) for each in run(driver, NAMELESS)]
        assert driver.title != "evil"
    assert (wrong, complaints(driver)) == ([], [])


def test_it_updates_without_losing_the_place(driver: webdriver.Chrome, url: str, site: Site) -> None:
    driver.get(f"{url}/messages")
    box = driver.find_element(By.CSS_SELECTOR, "input[value=s40]")
    box.click()
    run(driver, "window.scrollTo(0, 700)")
    scroll = run(driver, "return window.scrollY")
    assert scroll > 300
    site.make_due("s59", 50_000)
    wait_for_update(driver)
    # The list is new.
    assert seen(driver, "#list input[name=id]", "value") == "s59"
    checked = run(
        driver, "return Array.from(document.querySelectorAll('#list input:checked'), (box) => box.value)"
    )
    assert checked == ["s40"]
    assert run(driver, "return document.activeElement.value") == "s40"
    assert run(driver, "return window.scrollY") == scroll
    assert complaints(driver) == []


def test_what_is_typed_stays(driver: webdriver.Chrome, url: str) -> None:
    driver.get(f"{url}/messages")
    task = driver.find_element(By.NAME, "task")
    task.send_keys("shop.")
    wait_for_update(driver)
    assert task.get_attribute("value") == "shop."
    assert driver.switch_to.active_element == task


def test_updating_can_be_stopped(driver: webdriver.Chrome, url: str) -> None:
    driver.get(url)
    run(driver, "document.getElementById('live').dataset.seconds = 0.1")
    wait_for_update(driver)
    wait_for_update(driver)
    driver.find_element(By.ID, "pause-live").click()
    assert seen(driver, "#pause-live", "ariaPressed") == "true"
    # What was asked for before may come yet.
    time.sleep(0.5)
    before = seen(driver, "#live time", "dateTime")
    time.sleep(1)
    assert seen(driver, "#live time", "dateTime") == before


def test_acting(driver: webdriver.Chrome, url: str, site: Site) -> None:
    driver.get(f"{url}/messages")
    driver.find_element(By.CSS_SELECTOR, "input[value=s1]").click()
    driver.find_element(By.CSS_SELECTOR, "button[value=cancel]").click()
    wait_for(driver, "h1", "Cancel 1 message?")
    driver.find_element(By.NAME, "confirmed").click()
    wait_for(driver, "[role=status]", "Cancelled 1 message.")
    assert site.redis.zscore(site.store.keys("celery").schedule, "s1") is None
    assert complaints(driver) == []


def test_redis_goes_away_and_comes_back(driver: webdriver.Chrome, url: str, site: Site) -> None:
    driver.get(url)
    wait_for(driver, "h1", "Queues")
    site.redis.config_set("requirepass", "secret")
    try:
        site.redis.client_kill_filter(_type="normal", skipme=True)
        wait_for(driver, "h1", "Redis does not answer as it should")
    finally:
        site.redis.config_set("requirepass", "")
    wait_for(driver, "h1", "Queues")
