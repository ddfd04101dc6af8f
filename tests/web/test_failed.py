"""Failed tasks on the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from kombu_redisdelay import Selection
from kombu_redisdelay.broker.failure import CONTINUATION, RESULT
from kombu_redisdelay.broker.failure import name as failure_name
from kombu_redisdelay.web import confirming
from kombu_redisdelay.web.words import plural, text
from tests.cli.site import QUEUE, Site
from tests.failed import SECRET, keep_failed
from tests.web.states import DEAD, FAILED, dead, delivered, failed, payload
from tests.web.viewer import Viewer
from tools.harness.process import wait_until


def test_the_list_and_its_filter(viewer: Viewer, site: Site) -> None:
    failed(site, "a")
    failed(site, "b", error="ValueError")
    page = viewer.open("/messages", state=FAILED)
    assert page.ids == ["a", "b"]
    assert "2 failed tasks." in page.text
    assert "ValueError" in page.text
    assert viewer.open("/messages", state=FAILED, error="Val*").ids == ["b"]
    assert viewer.open("/messages", state=FAILED, order="last").ids == ["b", "a"]
    assert "Remove 1 failed task of all queues, with the error Val*?" in _asked(viewer)


def _asked(viewer: Viewer) -> str:
    viewer.open("/messages", state=FAILED, error="Val*")
    return viewer.press("Remove all").heading


@pytest.mark.parametrize(("arguments", "is_seen"), [("all", True), ("shortened", True), ("none", False)])
def test_what_is_told_of_one(site: Site, arguments: str, is_seen: bool) -> None:
    failed(site, "a", text=f"<b>{SECRET}", traceback=f"Traceback:\n  <script>\n{SECRET}")
    viewer = Viewer(site.app, arguments=arguments)
    page = viewer.open("/message", id="a")
    assert "Failed" in page.text
    assert "KeyError" in page.text
    assert "at celery@w" in page.text
    assert "with KeyError, try 2" in page.text
    assert "script" not in page.elements[page.elements.index("main") :]
    assert (SECRET in page.text, "Traceback" in page.text) == (is_seen, is_seen)
    viewer.close()


def test_a_dead_letter_with_its_id_is_left_alone(viewer: Viewer, site: Site) -> None:
    failed(site, "a")
    dead(site, "a")
    viewer.open("/messages", state=FAILED)
    assert viewer.press("Requeue", ["a"]).heading == "Requeue 1 message?"
    assert "Requeued 1 message." in viewer.press("Requeue").text
    messages = viewer.app.state.site.messages
    assert [messages.count(Selection(state=state)) for state in (FAILED, DEAD, "ready")] == [0, 1, 1]


def kinds(viewer: Viewer, **query: str) -> list[str]:
    """The links of the page to its kinds, in its order."""
    page = viewer.open("/failed", **query)
    assert page.status == 200
    return [said for said, href in page.links.items() if "error=" in href]


def test_kinds_of_failures(viewer: Viewer, site: Site) -> None:
    delivered(site, "x")
    failed(site, "a", "b", "c")
    failed(site, "d", task="shop.open", queue="other")
    failed(site, "e", task="shop.sync", error="Time[out]")
    # One after the other, also by a clock of whole milliseconds.
    for queue, group, last in (("other", "shop.open KeyError", 2), (QUEUE, "shop.sync Time[out]", 3e9)):
        site.redis.hset(site.store.keys(queue).failed_groups, group, f"1 1000 {last * 1000:.0f}")
    assert kinds(viewer) == ["shop.sync", "shop.close", "shop.open"]
    assert "5 failed tasks of 3 kinds." in viewer.at.text
    assert "4 failed in the last hour" in viewer.at.text
    assert "4 failed in the last week" in viewer.at.text
    assert kinds(viewer, sort="-count")[0] == "shop.close"
    assert kinds(viewer, queue="other") == ["shop.open"]
    assert "1 failed task of 1 kind in other." in viewer.at.text
    # Of a kind, its list, whatever its name has.
    kinds(viewer)
    assert viewer.open(viewer.at.links["shop.sync"]).ids == ["e"]
    kinds(viewer)
    assert viewer.open(viewer.at.links["shop.close"]).ids == ["c", "b", "a"]


def test_a_kind_is_removed_where_it_is_seen(viewer: Viewer, site: Site) -> None:
    failed(site, "a", "b")
    failed(site, "c", queue="other")
    kinds(viewer, queue=QUEUE, sort="task")
    page = viewer.press("Remove all")
    assert page.heading == (
        "Remove 2 failed tasks of the queue celery, of the task shop.close, with the error KeyError?"
    )
    page = viewer.press("Remove all")
    assert page.heading == "Failed tasks"
    assert "Removed 2 failed tasks." in page.text
    assert page.address.endswith("/failed?queue=celery&sort=task")
    assert kinds(viewer) == ["shop.close"]


def test_those_that_have_returned(viewer: Viewer, site: Site) -> None:
    failed(site, "f1", "f2")
    failed(site, "other", task="shop.open")
    assert "Returned" not in viewer.open("/failed").text
    failed(site, "r1", "r2", returned=RESULT)
    page = viewer.open("/failed", sort="last")
    assert "3 failed tasks of 2 kinds, and 2 that have returned." in page.text
    # Of two links with this text, the last one.
    assert viewer.open(page.links["shop.close"]).ids == ["r2", "r1"]
    assert "Returned" in viewer.at.text
    page = viewer.press("Requeue all")
    assert page.heading == (
        "Requeue 2 failed tasks of all queues, of the task shop.close, with the error KeyError, returned: "
        "result?"
    )
    assert "2 have returned before, and do their work once more." in page.text
    # The others of this task and error.
    page = viewer.open("/failed", sort="-last")
    assert viewer.open(page.links["shop.close"]).ids == ["f2", "f1"]


@pytest.mark.parametrize("button", ["Requeue all", "Remove all"])
def test_a_button_for_all_leaves_those_that_have_returned(viewer: Viewer, site: Site, button: str) -> None:
    failed(site, "f1", "f2")
    failed(site, "r1", returned=CONTINUATION)
    viewer.open("/messages", state=FAILED)
    verb = button.partition(" ")[0]
    page = viewer.press(button)
    assert page.heading == f"{verb} 2 failed tasks of all queues?"
    stays = "1 task that returned stays: its work is done."
    assert stays in page.text
    page = viewer.press(button)
    assert f"{verb}d 2 failed tasks. {stays}" in page.text
    assert page.ids == ["r1"]


def test_one_that_has_returned(viewer: Viewer, site: Site) -> None:
    failed(site, "r1", returned=RESULT)
    page = viewer.open("/message", id="r1")
    assert "its work is done: its result was lost. Celery may have stored FAILURE, and called" in page.text
    assert "To requeue it does the work once more" in page.text
    page = viewer.press("Requeue")
    assert (page.heading, "1 has returned before, and does its work once more." in page.text) == (
        *("Requeue 1 message?", True),
    )
    assert "Requeued 1 message. 1 has returned before" in viewer.press("Requeue").text


HOSTILE = ("<script>alert(1)</script>", "a task\x1b[31m", '"><img src=x>', "[a]*?", "x" * 300)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_only_text_and_found(viewer: Viewer, site: Site, name: str) -> None:
    failure = {"task": failure_name(name), "error": failure_name(name)}
    keep_failed(site.store, QUEUE, "a", payload(site, "a", name), **failure)
    failed(site, "b")
    page = viewer.open("/failed")
    assert page.elements.count("script") == 1
    assert "img" not in page.elements
    [link] = [href for said, href in page.links.items() if "error=" in href and said != "shop.close"]
    assert viewer.open(link).ids == ["a"]
    page = viewer.open("/message", id="a")
    assert page.elements.count("script") == 1
    assert viewer.open(next(href for href in page.links.values() if "error=" in href)).ids == ["a"]


def test_what_is_noted_of_one_is_a_field(viewer: Viewer, site: Site) -> None:
    keep_failed(site.store, QUEUE, "a", payload(site, "a", "shop.close"), started=None, tries=3)
    text = viewer.open("/message", id="a").text
    assert "ErrorKeyError" in text
    assert f"Text{SECRET}" in text
    assert "Workercelery@w" in text
    assert "Tries3" in text


def test_one_without_its_message_is_not_requeued(viewer: Viewer, site: Site) -> None:
    keep_failed(site.store, QUEUE, "a", "x" * (1024 * 1024 + 1))
    page = viewer.open("/message", id="a")
    assert "not kept, because it is too large, or lost" in page.text
    assert "Requeue" not in page.buttons
    viewer.open("/messages", state=FAILED)
    viewer.press("Requeue", ["a"])
    assert (
        "1 failed task stays: it was kept without its message, which is too large, or lost." in viewer.at.text
    )
    assert "Requeued 0 messages. 1 failed task stays: it was kept" in viewer.press("Requeue").text


def test_a_kind_is_requeued_slowly(viewer: Viewer, site: Site) -> None:
    failed(site, "a", "b")
    viewer.open("/failed")
    page = viewer.press("Requeue slowly")
    assert page.heading.endswith("of the task shop.close, with the error KeyError, slowly?")
    assert dict(page.forms[-1].fields)["rate"] == "10/s"
    page = viewer.press("Requeue slowly", rate="soon")
    assert page.status == 400
    assert "A rate is a number above 0" in page.text
    assert f"No worker consumes from the queue {QUEUE}." in page.text
    page = viewer.press("Requeue slowly", rate="100/s")
    assert (
        "Requeued 2 failed tasks. 2 failed tasks wait in queues that no worker consumes from. "
        "None have failed again so far. All that it began with were sent."
    ) in page.text
    assert site.redis.llen(QUEUE) == 2


def test_a_large_number_is_no_escape() -> None:
    question = f"Requeue {plural(1503, 'failed task')}\x1b?"
    assert text(question) == "Requeue 1\N{NARROW NO-BREAK SPACE}503 failed tasks\\x1b?"


@contextmanager
def a_worker_that_fails(site: Site) -> Iterator[None]:
    is_over = Event()

    def work() -> None:
        while not is_over.wait(0.005):
            while text := site.redis.rpop(QUEUE):
                id = json.loads(text)["headers"]["id"]
                keep_failed(site.store, QUEUE, id, text)

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_it_stops_when_they_fail_again(viewer: Viewer, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "DIRECT", 0.0)
    failed(site, *(f"m{number}" for number in range(100)))
    viewer.open("/failed")
    viewer.press("Requeue slowly")
    with a_worker_that_fails(site):
        page = viewer.press("Requeue slowly", rate="20/s")
        assert "of 100 messages" in page.text
        wait_until(lambda: "Stop" not in viewer.open(page.address).buttons, 60, "that it is over")
    assert "Stopped, because too many fail again." in viewer.at.text
    assert viewer.open(viewer.at.links["Back to the list"]).heading == "Failed tasks"


def test_it_can_be_stopped(viewer: Viewer, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "DIRECT", 0.0)
    failed(site, "a", "b")
    viewer.open("/failed")
    viewer.press("Requeue slowly")
    page = viewer.press("Requeue slowly", rate="1/h")
    wait_until(lambda: "1 of 2 messages" in viewer.open(page.address).text, 60, "that it shows how far it is")
    assert "At 1/h. None have failed again so far, and 1 failed task is left." in viewer.at.text
    # With another rate, and in another order, it is the same.
    viewer.open("/messages", state=FAILED, task="shop.close", error="KeyError")
    viewer.press("Requeue slowly")
    assert viewer.press("Requeue slowly", rate="100/s").address == page.address
    found = viewer.open("/failed")
    assert "at 1/h, 1 of 2 so far." in found.text
    [link] = [there for name, there in found.links.items() if name.endswith("slowly")]
    viewer.open(link)
    viewer.press("Stop")
    stopped = "Stopped by anybody. Requeued 1 failed task. 1 failed task waits in a queue"
    wait_until(lambda: stopped in viewer.open(page.address).text, 60, "the end")
    assert "None have failed again so far, and 1 failed task is left." in viewer.at.text
    assert "slowly" not in viewer.open("/failed").links
    assert [kind.count for kind in viewer.app.state.site.messages.failures()] == [1]


def test_a_day_and_a_week(viewer: Viewer, site: Site) -> None:
    now_s = site.now_ms() // 1000
    site.store.remember(QUEUE)
    hours = "".join(f"{now_s - ago * 3600} 3600 0 0 0 0 0 0 {count} 0\n" for ago, count in ((30, 7), (3, 5)))
    site.redis.hset(site.store.keys(QUEUE).history, "hours", hours)
    text = viewer.open("/failed").text
    for said in ("0 failed in the last hour", "5 failed in the last day", "12 failed in the last week"):
        assert said in text


def test_it_says_that_more_are_kept_than_counted(viewer: Viewer, site: Site) -> None:
    said, now_s = "The pictures show fewer: they go back a week", site.now_ms() // 1000
    failed(site, "a")
    assert said in viewer.open("/failed").text
    site.redis.hset(site.store.keys(QUEUE).history, "hours", f"{now_s - 7200} 3600 0 0 0 0 0 0 1 0\n")
    assert said not in viewer.open("/failed", queue=QUEUE).text


def test_who_may_only_look_sees_no_buttons(site: Site) -> None:
    failed(site, "a")
    viewer = Viewer(site.app, read_only=True)
    assert viewer.open("/failed").buttons == set()
    assert kinds(viewer) == ["shop.close"]
    viewer.close()


def test_it_says_that_nothing_is_kept_of_what_fails_again(site: Site) -> None:
    site.app.conf.broker_transport_options = {"keep_failed": None}
    viewer, said = Viewer(site.app), "a task that fails again is lost, with its message."
    failed(site, "a")
    dead(site, "b")
    viewer.open("/messages", state=FAILED)
    for button, ids in (("Requeue all", []), ("Requeue slowly", []), ("Requeue", ["a"])):
        assert said in viewer.press(button, ids).text
        viewer.open("/messages", state=FAILED)
    assert said not in viewer.press("Remove all").text
    viewer.open("/messages", state=DEAD)
    assert said not in viewer.press("Requeue all").text
    viewer.close()
