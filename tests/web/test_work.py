"""What takes long is done in the background, and a page says how far it is."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from threading import Event

import pytest
from starlette.testclient import TestClient

from kombu_redisdelay import Selection, batch
from kombu_redisdelay.operations.pace import Tell
from kombu_redisdelay.web import works
from kombu_redisdelay.web.words import plural
from kombu_redisdelay.web.works import Work, Works
from tests.cli.site import Site
from tests.web.states import scheduled
from tests.web.viewer import Page, Viewer
from tools.harness.process import wait_until

MESSAGES = 700


@pytest.fixture
def many(site: Site) -> None:
    with batch(site.app):
        for number in range(MESSAGES):
            site.send("shop.close", task_id=f"m{number}", countdown=3600)


def cancel_all(viewer: Viewer) -> Page:
    viewer.open("/messages", task="shop.*", before="2999-01-01T00:00")
    viewer.press("Cancel all")
    return viewer.press("Cancel all")


def when_held_back(viewer: Viewer) -> str:
    """Wait until the first step is done, which :func:`held_back` waits behind. Returns the address."""
    address = address_of(viewer)
    wait_until(lambda: "200 of 700 messages" in viewer.open(address).text, 60, "that it is so far")
    return address


def when_over(viewer: Viewer, address: str) -> Page:
    wait_until(lambda: "Stop" not in viewer.open(address).buttons, 60, "that it is over")
    return viewer.at


def simple(line: str, do: Callable[[Tell], str], key: object = None) -> Work:
    """A work without a page that has asked for it."""
    return Work(
        "",
        "ann",
        line,
        {},
        key,
        lambda work: do(work.tell),
        expected=None,
        in_portions=True,
        span=(None, None),
        since="due",
        page="messages",
        query={},
    )


def address_of(viewer: Viewer) -> str:
    [work] = viewer.app.state.site.works._works
    return f"/work?id={work}"


def test_a_page_shows_how_far_it_is(viewer: Viewer, many: None, held_back: Event) -> None:
    page = cancel_all(viewer)
    assert page.heading == "Cancel 700 scheduled messages of all queues, of the task shop.*"
    assert "Only those that are due before 2999-01-01 00:00:00 UTC." in page.text
    address = when_held_back(viewer)
    assert "Asked for by anybody" in viewer.at.text
    assert 'http-equiv="refresh"' in viewer.at.source
    held_back.set()
    page = when_over(viewer, address)
    assert "Cancelled 700 messages." in page.text
    assert "http-equiv" not in page.source
    assert viewer.open(page.links["Back to the list"]).heading == "Messages"
    assert viewer.app.state.site.messages.count(Selection(state="scheduled")) == 0


def test_it_can_be_stopped(
    viewer: Viewer, many: None, held_back: Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kombu_redisdelay.web")
    cancel_all(viewer)
    address = when_held_back(viewer)
    assert "It stops after the step" in viewer.press("Stop").text
    held_back.set()
    wait_until(lambda: "Stopped by anybody after 200 messages." in viewer.open(address).text, 60, "the end")
    assert viewer.app.state.site.messages.count(Selection(state="scheduled")) == MESSAGES - 200
    [record] = [record for record in caplog.records if record.name == "kombu_redisdelay.web.works"]
    assert record.getMessage().endswith("stopped by anybody after 200 messages")


def test_pressed_twice_it_is_done_once(viewer: Viewer, many: None, held_back: Event) -> None:
    cancel_all(viewer)
    address = address_of(viewer)
    # The form is sent again.
    assert cancel_all(viewer).heading.startswith("Cancel 700 scheduled")
    assert address_of(viewer) == address


def test_what_ends_soon_is_not_remembered(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a", "b")
    viewer.open("/messages")
    viewer.press("Cancel all")
    assert "Cancelled 2 messages." in viewer.press("Cancel all").text
    assert viewer.app.state.site.works._works == {}


def test_what_fails_later_is_said(viewer: Viewer, site: Site, many: None, held_back: Event) -> None:
    cancel_all(viewer)
    address = when_held_back(viewer)
    site.redis.config_set("requirepass", "secret")
    try:
        site.redis.client_kill_filter(_type="normal", skipme=True)
        held_back.set()
        text = when_over(viewer, address).text
        assert re.search(r"It failed after \d+ messages or more. Start it again for the rest. ", text)
    finally:
        site.redis.config_set("requirepass", "")


def test_one_that_is_unknown(viewer: Viewer) -> None:
    page = viewer.open("/work", id="nothing")
    assert (page.status, page.heading) == (404, "Not known here")


def test_only_who_may_act_may_stop(site: Site, viewer: Viewer, many: None, held_back: Event) -> None:
    cancel_all(viewer)
    [form] = [form for form in viewer.at.forms if "Stop" in form.buttons]
    assert viewer.send("/stop", [pair for pair in form.fields if pair[0] == "work"]).status == 403
    viewer.app.state.site.read_only = True
    assert viewer.send("/stop", form.fields).status == 403
    assert "Stop" not in viewer.open(address_of(viewer)).buttons


def test_it_stops_with_the_page(
    site: Site, many: None, held_back: Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kombu_redisdelay.web")
    viewer = Viewer(site.app)
    with TestClient(viewer.app) as viewer.client:
        cancel_all(viewer)
        when_held_back(viewer)
        [work] = viewer.app.state.site.works._works.values()
        # The page asks for the end before the next step.
        stop = work.stop

        def stop_and_go_on(by: str) -> None:
            stop(by)
            held_back.set()

        work.stop = stop_and_go_on
    assert "stopped by the end of the page after 200 messages" in caplog.text
    assert site.redis.zcard(site.store.keys("celery").schedule) == MESSAGES - 200


def test_a_step_that_takes_too_long_is_left_behind(
    viewer: Viewer,
    many: None,
    held_back: Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(works, "_LAST_STEP", 0.1)
    cancel_all(viewer)
    viewer.app.state.site.works.stop()
    assert "left behind in a step that takes long" in caplog.text


def test_a_few_are_remembered() -> None:
    found = Works()
    every = []
    for number in range(works.REMEMBERED + 5):
        work = simple("", lambda tell: "", number)
        every.append(found.start(work))
        assert work.wait(10)
    assert [found.get(work.id) is not None for work in every] == [False] * 5 + [True] * works.REMEMBERED


def test_no_more_run_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(works, "MOST_RUNNING", 1)
    found, go_on = Works(), Event()

    def start(key: str) -> Work:
        return found.start(simple("", lambda tell: str(go_on.wait(10)), key))

    first = start("one")
    assert start("one") is first
    with pytest.raises(works.TooMany):
        start("two")
    go_on.set()
    assert first.wait(10)
    assert start("two") is not first


def test_a_large_number_can_be_read_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kombu_redisdelay.web")
    work = simple("ann: cancel-all", lambda tell: f"Cancelled {plural(126_500, 'message')}.")
    Works().start(work)
    assert work.wait(10)
    # The work of another test may end meanwhile.
    [line] = [each for each in caplog.messages if each.startswith("ann: ")]
    assert line == "ann: cancel-all: Cancelled 126,500 messages."


#: An application that mounts the page, and does not tell it that it ends.
ENDS = """
import logging
import time

from tests.web.test_work import simple
from kombu_redisdelay.web.works import Works

logging.basicConfig(level=logging.INFO, format="%(message)s")


def count_for_ever(tell):
    count = 0
    while True:
        time.sleep(0.01)
        count += 1
        tell(count)


work = simple("ann: cancel-all", count_for_ever)
Works().start(work)
while not work.count:
    time.sleep(0.01)
"""


def test_it_stops_with_the_process() -> None:
    result = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60)
    last = (result.stderr.splitlines() or [""])[-1]
    assert re.fullmatch(r"ann: cancel-all: stopped by the end of the page after \d+ messages?", last)
