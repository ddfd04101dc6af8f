"""Lists of very many messages in a real browser: opened, filtered, and paged forward and back.

CI has 50,000 in each state, and is patient: it runs four tests at a time. With
``REDISDELAY_WEB_MESSAGES=1000000 pytest -s -o timeout=500 tests/web/test_many.py`` it is a million in each
state, nobody is patient, and it is said how long each page took.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from statistics import median
from typing import Any
from urllib.parse import parse_qs

import pytest

from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.operations.reading import LOOKS_FOR
from kombu_redisdelay.web import create
from kombu_redisdelay.web.words import number
from tests.cli.site import QUEUE, Site
from tests.web.states import DEAD, READY, ready
from tools.harness.redis_server import RedisServer

# The browser's driver need not be installed.
pytest.importorskip("selenium")

from selenium import webdriver
from selenium.webdriver.common.by import By

from tools.harness.browser import missing, run, seen, served, size, wait_for

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"no browser: {missing()}")

COUNT = int(os.environ.get("REDISDELAY_WEB_MESSAGES", "50000"))

#: Milliseconds between two that become due.
BETWEEN_MS = 100

#: What the server may take for a page, in seconds, and Redis for a script, in microseconds.
PAGE_SECONDS, SCRIPT_US = (0.1, 5000) if COUNT >= 1_000_000 else (1, 50_000)


class Timed:
    """An ASGI application, with a watch.

    Attributes:
        seconds: how long each response took, by the path and the fields of the address.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.seconds: dict[str, list[float]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        began = time.perf_counter()
        await self._app(scope, receive, send)
        if scope["type"] == "http" and not scope["path"].startswith("/static"):
            fields = parse_qs(scope["query_string"].decode())
            what = " ".join([scope["path"], *fields.get("state", []), *sorted(fields)])
            self.seconds.setdefault(what, []).append(time.perf_counter() - began)


@pytest.fixture(scope="module")
def many() -> Iterator[Site]:
    """Messages of two tasks. The second one is that of each thousandth."""
    with RedisServer() as server:
        site = Site(server)
        site.redis.config_set("slowlog-log-slower-than", -1)
        ready(site, "m0000000", queue=QUEUE)
        payload = site.redis.lpop(QUEUE)
        keys, now_ms = site.store.keys(QUEUE), site.now_ms()
        site.store.remember(QUEUE)
        for begin in range(0, COUNT, 5000):
            with site.redis.pipeline(transaction=False) as pipe:
                for place in range(begin, min(begin + 5000, COUNT)):
                    id = f"m{place:07}"
                    mine = payload.replace("m0000000", id)
                    if place % 1000 == 999:
                        mine = mine.replace("shop.close", "shop.rare")
                    pipe.zadd(keys.schedule, {id: now_ms + 3_600_000 + BETWEEN_MS * place})
                    pipe.hset(keys.messages, id, f"0:{mine}")
                    pipe.lpush(QUEUE, mine)
                    died_ms = now_ms - COUNT + place
                    pipe.zadd(keys.dead_index, {id: died_ms})
                    task = "shop.rare" if "shop.rare" in mine else "shop.close"
                    head = f'{died_ms}000 1 {task} rejected {place} {{"text": "it failed"}}'
                    pipe.hset(keys.dead_heads, id, head)
                    pipe.hset(keys.dead_messages, id, f"0:{mine}")
                pipe.execute()
        yield site
        site.close()


@pytest.fixture
def timed(many: Site, driver: webdriver.Chrome) -> Iterator[tuple[str, Timed]]:
    """The address, and the watch."""
    site = many
    app = create(site.app)
    timed = Timed(app)
    site.redis.config_set("slowlog-log-slower-than", 0)
    site.redis.config_set("slowlog-max-len", 100_000)
    site.redis.slowlog_reset()
    size(driver, 1280, 800)
    with served(timed) as address:
        yield address, timed
    app.state.site.close()
    driver.get("about:blank")


def ids(driver: webdriver.Chrome) -> list[str]:
    found = run(driver, "return Array.from(document.querySelectorAll('#list input[name=id]'), b => b.value)")
    return [value.partition(" ")[0] for value in found]


def first_is(driver: webdriver.Chrome, place: int) -> None:
    wait_for(driver, "#list .id a", f"m{place:07}")


def press(driver: webdriver.Chrome, text: str) -> None:
    driver.find_element(By.LINK_TEXT, text).click()


def check(site: Site, timed: Timed) -> None:
    """How long the pages and the scripts took."""
    slow: dict[str, list[int]] = {}
    for entry in site.redis.slowlog_get(100_000):
        if entry["command"].startswith(b"EVAL"):
            slow.setdefault(entry["command"].split()[1].decode(), []).append(entry["duration"])
    for what, seconds in timed.seconds.items():
        print(f"{what}: {1000 * median(seconds):.0f} ms, at most {1000 * max(seconds):.0f} ms")
    for script, us in sorted(slow.items(), key=lambda each: -max(each[1]))[:5]:
        print(f"{script}: {len(us)} times, {median(us):.0f} us, at most {max(us)} us")
    # With a filter, a page searches for a while.
    most = {what: PAGE_SECONDS + LOOKS_FOR * ("task" in what) for what in timed.seconds}
    assert {
        what: median(seconds) for what, seconds in timed.seconds.items() if median(seconds) > most[what]
    } == {}
    # Of many calls, a few meet a time in which a busy machine lets the server wait.
    slowest = {script: sorted(us)[-1 - len(us) // 50] for script, us in slow.items()}
    assert {script: us for script, us in slowest.items() if us > SCRIPT_US} == {}


def test_what_is_scheduled(many: Site, driver: webdriver.Chrome, timed: tuple[str, Timed]) -> None:
    url, watch = timed
    for _ in range(3):
        # The first one connects, and asks the doctor.
        driver.get(url)
    driver.get(f"{url}/messages")
    assert f"{number(COUNT)} scheduled messages" in (seen(driver, "#summary") or "")
    for page in range(4):
        first_is(driver, 50 * page)
        assert ids(driver) == [f"m{place:07}" for place in range(50 * page, 50 * page + 50)]
        press(driver, "Next page")
    first_is(driver, 200)
    driver.back()
    first_is(driver, 150)
    driver.back()
    first_is(driver, 100)
    press(driver, "First page")
    first_is(driver, 0)
    press(driver, "Due")
    first_is(driver, COUNT - 1)
    press(driver, "Next page")
    first_is(driver, COUNT - 51)
    press(driver, "Due")
    first_is(driver, 0)
    # Half of them are due later.
    half_ms = many.redis.zscore(many.store.keys(QUEUE).schedule, f"m{COUNT // 2:07}")
    driver.find_element(By.NAME, "after").send_keys(from_ms(half_ms).isoformat())
    driver.find_element(By.CSS_SELECTOR, ".filter button").click()
    wait_for(driver, ".filter a", "Clear")
    first_is(driver, COUNT // 2)
    # A rare task: a page looks for it for a while, and the next one goes on from there.
    driver.get(f"{url}/messages?task=*.rare")
    found = ids(driver)
    while len(found) < 5:
        press(driver, "Next page")
        found += ids(driver)
    assert found[:5] == [f"m{place:07}" for place in range(999, 5000, 1000)]
    check(many, watch)


@pytest.mark.parametrize("state", [pytest.param(READY, marks=pytest.mark.thorough), DEAD])
def test_what_is(many: Site, driver: webdriver.Chrome, timed: tuple[str, Timed], state: str) -> None:
    url, watch = timed
    driver.get(f"{url}/messages?state={state}&queue={QUEUE}")
    for page in range(4):
        first_is(driver, 50 * page)
        press(driver, "Next page")
    first_is(driver, 200)
    driver.back()
    first_is(driver, 150)
    if state == DEAD:
        press(driver, "Since")
        first_is(driver, COUNT - 1)
        press(driver, "Next page")
        first_is(driver, COUNT - 51)
    check(many, watch)
