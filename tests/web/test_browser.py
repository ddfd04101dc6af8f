"""The page in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import pytest

from kombu_redisdelay import Messages
from kombu_redisdelay.operations.fair import limits_of_key
from tests.cli.site import Site
from tests.web.states import LONG, PAGES
from tools.harness.process import wait_until

# The browser's driver need not be installed.
pytest.importorskip("selenium")

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tools.harness.browser import NAMELESS, PALE, click, missing, run, scheme, seen, size, wait_for

EN_DASH = "\N{EN DASH}"

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
    wait_until(lambda: seen(driver, "#live time", "dateTime") != before, 60, "that it updates")


def test_each_page_is_sound(driver: webdriver.Chrome, url: str) -> None:
    """No complaints of the browser, names for screen readers, contrast, and no page wider than its window."""
    driver.get_log("browser")
    wrong: list[tuple[str, ...]] = []
    for path in PAGES:
        driver.get(url + path)
        for width in (360, 1280, 3840):
            size(driver, width, 800)
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
    click(driver, "input[value^='s40 ']")
    run(driver, "window.scrollTo(0, 700)")
    scroll = run(driver, "return window.scrollY")
    assert scroll > 300
    site.make_due("s59", 50_000)
    wait_for_update(driver)
    # The list is new.
    assert seen(driver, "#list input[name=id]", "value") == "s59 celery"
    checked = run(
        driver, "return Array.from(document.querySelectorAll('#list input:checked'), (box) => box.value)"
    )
    assert checked == ["s40 celery"]
    assert run(driver, "return document.activeElement.value") == "s40 celery"
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
    click(driver, "#pause-live")
    assert seen(driver, "#pause-live", "ariaPressed") == "true"
    # What was asked for before may come yet.
    time.sleep(0.5)
    before = seen(driver, "#live time", "dateTime")
    time.sleep(1)
    assert seen(driver, "#live time", "dateTime") == before


def test_acting(driver: webdriver.Chrome, url: str, site: Site) -> None:
    driver.get(f"{url}/messages")
    click(driver, "input[value^='s1 ']")
    click(driver, "button[value=cancel]")
    wait_for(driver, "h1", "Cancel 1 message?")
    click(driver, "[name=confirmed]")
    wait_for(driver, "[role=status]", "Cancelled 1 message.")
    assert site.redis.zscore(site.store.keys("celery").schedule, "s1") is None
    # A key of a fair queue, on a page that is sorted and searched.
    driver.get(f"{url}/keys?name={LONG}&sort=key&search=tenant-1")
    for action, done, reason in (("pause", "paused", "paused"), ("resume", "not paused any more", EN_DASH)):
        click(driver, "input[value='tenant-1 ']")
        click(driver, f"button[value={action}-key]")
        wait_until(lambda: seen(driver, "form.confirm"), 60, "the question")
        click(driver, "[name=confirmed]")
        wait_for(driver, "[role=status]", f"Key tenant-1 of {LONG}: {done}.")
        assert (limits_of_key(site.store, LONG, "tenant-1").paused_since is not None) == (action == "pause")
        names = "return Array.from(document.querySelectorAll('#list tbody th'), (each) => each.innerText)"
        assert run(driver, names) == ["tenant-1", "tenant-10", "tenant-11"]
        assert seen(driver, "#list tbody td[data-label=Reason]") == reason
    assert complaints(driver) == []


AWAY = "Redis does not answer as it should"


@contextmanager
def redis_refuses(site: Site) -> Iterator[None]:
    """Redis asks for a password that nobody has."""
    site.redis.config_set("requirepass", "secret")
    try:
        site.redis.client_kill_filter(_type="normal", skipme=True)
        yield
    finally:
        site.redis.config_set("requirepass", "")


def test_redis_goes_away_and_comes_back(driver: webdriver.Chrome, url: str, site: Site) -> None:
    driver.get(f"{url}/messages")
    click(driver, "input[value^='s1 ']")
    task = driver.find_element(By.NAME, "task")
    task.send_keys("shop.")
    # A field that has text and not the focus.
    driver.find_element(By.NAME, "related").click()
    driver.find_element(By.ID, "find").click()
    with redis_refuses(site):
        wait_until(lambda: (seen(driver, "[role=alert]") or "").startswith(AWAY), 60, "that it says so")
        assert seen(driver, "h1") == "Messages"
        # It is said once, so that a screen reader reads it once.
        run(driver, "window.banner = document.querySelector('[role=alert]').firstChild")
        fetched = "performance.getEntriesByType('resource').filter((each) => each.initiatorType === 'fetch')"
        asked = f"return {fetched}.length"
        before = run(driver, asked)
        wait_until(lambda: run(driver, asked) > before + 1, 60, "that it asks again")
        assert run(driver, "return document.querySelector('[role=alert]').firstChild === window.banner")
    wait_for(driver, "[role=alert]", "")
    assert task.get_attribute("value") == "shop."
    assert run(driver, "return document.querySelectorAll('#list input:checked').length") == 1


def test_a_page_that_came_as_an_error_becomes_the_page(
    driver: webdriver.Chrome, url: str, site: Site
) -> None:
    with redis_refuses(site):
        driver.get(url)
        assert seen(driver, "h1") == AWAY
    wait_for(driver, "h1", "Queues")


def test_an_answer_that_is_no_page_of_ours_does_not_end_the_updates(
    driver: webdriver.Chrome, url: str, site: Site
) -> None:
    driver.get(url)
    wait_for(driver, "h1", "Queues")
    driver.execute_script(
        "const real = window.fetch; window.asked = 0;"
        "window.fetch = async (...all) => {"
        "  window.asked += 1;"
        "  const bad = new Response('<h1>502 Bad Gateway</h1>', {status: 502});"
        "  return window.asked === 1 ? bad : real(...all);"
        "};"
    )
    wait_until(lambda: "No answer" in (seen(driver, "[role=alert]") or ""), 30, "away")
    wait_for(driver, "[role=alert]", "")
    wait_for(driver, "h1", "Queues")


def ticked(driver: webdriver.Chrome) -> int:
    return int(run(driver, "return document.querySelectorAll('#list input[name]:checked').length"))


def test_all_of_a_page_are_ticked_at_once(driver: webdriver.Chrome, url: str, site: Site) -> None:
    driver.get(f"{url}/messages")
    all_of_it = "document.querySelector('[data-select-all]')"
    for width in (360, 1400):
        size(driver, width, 800)
        run(driver, f"{all_of_it}.click()")
        assert ticked(driver) == 50
        click(driver, "input[value^='s4 ']")
        assert run(driver, f"return {all_of_it}.indeterminate")
        run(driver, f"{all_of_it}.click()")
        assert ticked(driver) == 50
        run(driver, f"{all_of_it}.click()")
        assert ticked(driver) == 0
    run(driver, f"{all_of_it}.click()")
    site.make_due("s59", 50_000)
    wait_for_update(driver)
    # One has come that nobody has ticked.
    assert (ticked(driver), run(driver, f"return {all_of_it}.indeterminate")) == (49, True)


def test_enter_in_a_list_does_not_act(driver: webdriver.Chrome, url: str) -> None:
    driver.get(f"{url}/messages")
    driver.find_element(By.CSS_SELECTOR, "input[value^='s1 ']").send_keys(Keys.SPACE, Keys.ENTER)
    time.sleep(0.5)
    assert ticked(driver) == 1
    driver.find_element(By.NAME, "task").send_keys("nothing*", Keys.ENTER)
    wait_for(driver, ".empty", "No scheduled messages that match.")
    assert "task=nothing" in driver.current_url


@pytest.mark.parametrize("button", ["cancel-all", "deliver_now-all"])
def test_enter_after_the_question_does_nothing(driver: webdriver.Chrome, url: str, button: str) -> None:
    driver.get(f"{url}/messages")
    click(driver, f"button[value={button}]")
    wait_until(lambda: seen(driver, "form.confirm"), 60, "the question")
    assert driver.switch_to.active_element.tag_name == "h1"
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    time.sleep(0.5)
    assert seen(driver, "form.confirm")


def test_a_message_that_moves_on(driver: webdriver.Chrome, url: str, site: Site) -> None:
    driver.get(f"{url}/message?id=s1")
    wait_for(driver, "#where", "Scheduled in celery.")
    run(driver, "document.getElementById('live').dataset.seconds = 0.5")
    with Messages(site.app) as queues, Messages(site.app) as delayed:
        delayed.deliver_now(ids=["s1"])
        wait_for(driver, "#where", "Ready in celery.")
        assert seen(driver, "#message-1 .tag") == "ready"
        queues.cancel(ids=["s1"])
    wait_until(lambda: "No message has this id now." in (seen(driver, "#where") or ""), 60, "that it is gone")
    # What was seen of it stays, but nothing can be done to it.
    assert seen(driver, "#message-1 .tag") == "ready"
    assert not run(driver, "return document.querySelector('#message-1 form').checkVisibility()")
    site.send("shop.close", task_id="s1", countdown=600)
    wait_for(driver, "#where", "Scheduled in celery.")
    assert run(driver, "return document.querySelector('#message-1 form').checkVisibility()")
    site.send("shop.close", task_id="s1")
    wait_for(driver, "#where", "2 messages have this id: scheduled in celery; ready in celery.")
    assert seen(driver, "#message-2 .tag") == "ready"


def test_what_takes_long_shows_how_far_it_is(driver: webdriver.Chrome, url: str, held_back: Event) -> None:
    driver.get(f"{url}/messages?task=shop.close")
    click(driver, "button[value=cancel-all]")
    wait_until(lambda: seen(driver, "form.confirm"), 60, "the question")
    click(driver, "[name=confirmed]")
    wait_for(driver, "h1", "Cancel 60 scheduled messages of all queues, of the task shop.close")
    assert seen(driver, "progress", "max") == "60"
    held_back.set()
    wait_for(driver, "#outcome", "Cancelled 60 messages.")
    assert seen(driver, "progress") is None


def test_a_kind_of_failed_tasks_is_requeued_slowly(driver: webdriver.Chrome, url: str) -> None:
    driver.get(f"{url}/failed")
    click(driver, "button[value=requeue-slowly]")
    wait_until(lambda: seen(driver, "form.confirm"), 60, "the question")
    question = str(seen(driver, "h1", "textContent"))
    rate = driver.find_element(By.NAME, "rate")
    rate.clear()
    rate.send_keys("1/h", Keys.ENTER)
    wait_for(driver, "h1", question.removesuffix("?"))
    assert question.endswith(" of the task shop.close, with the error KeyError, slowly?")
    # It brings itself up to date.
    wait_until(lambda: seen(driver, "progress", "value") == "1", 60, "that one is done")
    click(driver, "button[name=stop]")
    wait_until(
        lambda: "Stopped by anybody. Requeued 1 failed" in str(seen(driver, "#outcome", "textContent")),
        60,
        "the end",
    )
    assert complaints(driver) == []


def test_what_is_touched_is_large_enough(driver: webdriver.Chrome, url: str) -> None:
    size(driver, 360, 800)
    for path in ("/", "/messages", "/messages?state=dead", "/failed"):
        driver.get(url + path)
        small = run(
            driver,
            "return Array.from(document.querySelectorAll('thead a'), (each) => each.getBoundingClientRect())"
            ".filter((box) => box.height < 30 || box.width < 24).length",
        )
        assert small == 0


def test_an_id_has_one_line_on_a_screen(driver: webdriver.Chrome, url: str, site: Site) -> None:
    id = "0b8a7c5e-6e4f-4c1b-9b2e-3f2a1d0c9b8a"
    site.send("shop.close", args=["x" * 300], task_id=id, countdown=60)
    size(driver, 1400, 800)
    driver.get(f"{url}/messages")
    lines = f"return document.querySelector('a[href$=\"{id}\"]').getClientRects().length"
    assert run(driver, lines) == 1
