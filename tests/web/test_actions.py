"""Each action asks, says how many it is about, and does it to exactly these."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from kombu_redisdelay import Selection
from kombu_redisdelay.cli.web import audit_handler
from tests.cli.site import QUEUE, Site
from tests.web.states import DEAD, FAILED, READY, SCHEDULED, dead, failed, ready, scheduled
from tests.web.viewer import Viewer


def ids_of(viewer: Viewer, state: str) -> list[str]:
    return sorted(message.id for message in viewer.app.state.site.messages.select(Selection(state=state)))


PUT = {SCHEDULED: scheduled, READY: ready, FAILED: failed, DEAD: dead}


def _question(button: str, what: str) -> str:
    verb, *now = button.split()
    return f"{' '.join((verb, what, *now))}?"


@pytest.mark.parametrize(
    ("state", "button", "done", "then"),
    [
        (SCHEDULED, "Cancel", "Cancelled", None),
        (SCHEDULED, "Deliver now", "Delivered", READY),
        (READY, "Cancel", "Cancelled", None),
        *((state, "Requeue", "Requeued", READY) for state in (FAILED, DEAD)),
        *((state, "Remove", "Removed", None) for state in (FAILED, DEAD)),
    ],
)
def test_what_is_selected(
    viewer: Viewer, site: Site, state: str, button: str, done: str, then: str | None
) -> None:
    PUT[state](site, "a", "b", "c")
    viewer.open("/messages", state=state)
    page = viewer.press(button, ["a", "c"])
    assert (page.status, page.heading) == (200, _question(button, "2 messages"))
    assert ids_of(viewer, state) == ["a", "b", "c"]
    page = viewer.press(button)
    assert f"{done} 2 messages." in page.text
    assert page.ids == ["b"]
    assert ids_of(viewer, state) == ["b"]
    if then:
        assert ids_of(viewer, then) == ["a", "c"]
    # It is said once.
    assert done not in viewer.open("/messages", state=state).text


@pytest.mark.parametrize(
    ("state", "button"),
    [
        (SCHEDULED, "Cancel"),
        (SCHEDULED, "Deliver now"),
        (SCHEDULED, "Reschedule"),
        (READY, "Cancel"),
        *((state, button) for state in (FAILED, DEAD) for button in ("Requeue", "Remove")),
    ],
)
def test_the_same_id_in_another_queue_is_left_alone(
    viewer: Viewer, site: Site, state: str, button: str
) -> None:
    for queue in ("one", "two"):
        PUT[state](site, "a", queue=queue)
    site.store.remember("one", "two")
    before = list(viewer.app.state.site.messages.select(Selection(ids=["a"])))
    viewer.open("/messages", state=state, queue="one")
    viewer.press(button, ["a"])
    fields = {"time": "3h"} if button == "Reschedule" else {}
    assert " 1 message." in viewer.press(button, **fields).text
    after = list(viewer.app.state.site.messages.select(Selection(ids=["a"])))
    assert [each for each in after if each.queue == "two"] == [each for each in before if each.queue == "two"]
    assert after != before


@pytest.mark.parametrize(
    ("state", "button", "what", "then"),
    [
        (SCHEDULED, "Cancel all", "scheduled message", None),
        (SCHEDULED, "Deliver all now", "scheduled message", READY),
        (DEAD, "Requeue all", "dead letter", READY),
        (DEAD, "Remove all", "dead letter", None),
    ],
)
@pytest.mark.parametrize(
    ("choice", "expected", "which"),
    [
        ({}, "abcd", "of all queues"),
        ({"queue": QUEUE}, "abc", "of the queue celery"),
        ({"task": "shop.*"}, "abd", "of all queues, of the task shop.*"),
        ({"task": "other", "queue": QUEUE}, "c", "of the queue celery, of the task other"),
    ],
)
def test_all_of_a_list(
    viewer: Viewer,
    site: Site,
    state: str,
    button: str,
    what: str,
    then: str | None,
    choice: dict[str, str],
    expected: str,
    which: str,
) -> None:
    PUT[state](site, "a", "b")
    PUT[state](site, "c", task="other")
    PUT[state](site, "d", queue="emails")
    viewer.open("/messages", state=state, **choice)
    page = viewer.press(button)
    some = f"1 {what}" if len(expected) == 1 else f"{len(expected)} {what}s"
    assert page.heading == _question(button.replace(" all", ""), some).replace("?", f" {which}?")
    page = viewer.press(button)
    assert page.status == 200
    assert ids_of(viewer, state) == sorted(set("abcd") - set(expected))
    assert ids_of(viewer, READY) == (list(expected) if then else [])


def test_rescheduling(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a", "b", seconds=100_000)
    viewer.open("/messages")
    viewer.press("Reschedule", ["a"])
    page = viewer.press("Reschedule", time="whenever")
    assert page.status == 400
    assert "New time: 'whenever' is neither" in page.text
    page = viewer.press("Reschedule", time="10m")
    assert "Rescheduled 1 message." in page.text
    assert viewer.open("/messages", before="11m").ids == ["a"]
    viewer.open("/messages", after="11m")
    assert viewer.press("Reschedule all").heading.startswith("Reschedule 1 scheduled message of all")
    assert "Rescheduled 1 message." in viewer.press("Reschedule all", time="2999-01-01T00:00").text
    assert viewer.open("/messages", after="365d").ids == ["b"]


def test_a_distance_is_from_when_it_was_asked(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a", seconds=600)
    viewer.open("/messages", before="10m")
    page = viewer.press("Cancel all")
    # The form that is confirmed has moments.
    assert "10m" not in dict(page.forms[-1].fields)["choice"]
    assert "before=2" in dict(page.forms[-1].fields)["choice"]


def test_what_has_moved_on(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a", "b")
    viewer.open("/messages")
    viewer.press("Cancel", ["a", "b"])
    viewer.app.state.site.messages.cancel(ids=["a"])
    assert "Cancelled 1 message. 1 of the selected ones had moved on." in viewer.press("Cancel").text


def test_nothing_is_selected(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a")
    viewer.open("/messages")
    assert "No message was selected." in viewer.press("Cancel").text
    assert ids_of(viewer, SCHEDULED) == ["a"]


def test_one_message(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a", "b")
    viewer.open("/message", id="a")
    assert viewer.press("Cancel").heading == "Cancel 1 message?"
    viewer.press("Cancel")
    assert ids_of(viewer, SCHEDULED) == ["b"]


def test_pausing_and_resuming(viewer: Viewer, site: Site) -> None:
    ready(site, "a")
    viewer.open("/queue", name=QUEUE)
    assert viewer.press("Pause").heading.startswith("Pause celery for all workers? It has 1 ready message.")
    assert "celery is paused." in viewer.press("Pause").text
    assert viewer.app.state.site.queues.limits(QUEUE).is_paused
    viewer.press("Resume")
    assert "celery is not paused any more." in viewer.press("Resume").text
    assert not viewer.app.state.site.queues.limits(QUEUE).is_paused


def test_limiting(viewer: Viewer) -> None:
    viewer.open("/queue", name=QUEUE)
    viewer.press("Limit")
    page = viewer.press("Limit", rate="often")
    assert (page.status, "such as 10/s" in page.text) == (400, True)
    assert viewer.press("Limit", rate="10/s", burst="-1").status == 400
    page = viewer.press("Limit", rate="100/m", burst="5", concurrency="20")
    assert "celery is limited." in page.text
    control = viewer.app.state.site.queues.limits(QUEUE)
    assert (control.rate, control.burst, control.concurrency) == ("100/m", 5, 20)
    page = viewer.press("Limit")
    assert {"rate": "100/m", "burst": "5", "concurrency": "20"}.items() <= dict(page.forms[-1].fields).items()
    assert "no limits any more" in viewer.press("Limit", rate="", burst="", concurrency="").text
    # Somebody has limited it since the page was loaded.
    viewer.app.state.site.queues.limit(QUEUE, rate="50/s")
    page = viewer.press("Limit")
    # The burst is the default: it follows the rate, also that which is written now.
    assert {"rate": "50/s", "burst": ""}.items() <= dict(page.forms[-1].fields).items()
    viewer.press("Limit", rate="1/s")
    assert viewer.app.state.site.queues.limits(QUEUE).burst == 1


@pytest.mark.parametrize(
    "pairs",
    [
        [("action", "nothing")],
        [("action", "cancel-all"), ("choice", "state=unacked"), ("confirmed", "1")],
        [("action", "requeue-all"), ("choice", "state=held&related=g"), ("confirmed", "1")],
        [("action", "remove-all"), ("choice", "state=scheduled"), ("confirmed", "1")],
        [("action", "pause"), ("confirmed", "1")],
        [("action", "cancel-all"), ("choice", "before=soon")],
        [("action", "cancel-all"), ("choice", "before=soon"), ("confirmed", "1")],
        [("action", "cancel-all"), ("choice", "args=a")],
        [("action", "cancel-all"), ("choice", "args=a"), ("confirmed", "1")],
    ],
)
def test_what_no_page_offers(viewer: Viewer, site: Site, pairs: Sequence[tuple[str, str]]) -> None:
    scheduled(site, "a")
    token = dict(viewer.open("/messages").forms[-1].fields)["redisdelay_token"]
    assert viewer.send("/act", [("redisdelay_token", token), *pairs]).status == 400
    assert ids_of(viewer, SCHEDULED) == ["a"]


def test_who_did_what_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    scheduled(site, "a\n\x1b[31mb")
    caplog.set_level(logging.INFO, "kombu_redisdelay.web")
    viewer = Viewer(site.app, users={"ann": "secret"})
    viewer.client.auth = ("ann", "secret")
    viewer.open("/messages")
    viewer.press("Cancel", ["a\n\x1b[31mb"])
    viewer.press("Cancel")
    [record] = [record for record in caplog.records if record.name.startswith("kombu_redisdelay.web")]
    assert record.getMessage() == r"ann from testclient: cancel a\n\x1b[31mb: Cancelled 1 message."
    viewer.close()


def test_who_did_what_as_json(site: Site, tmp_path: Path) -> None:
    handler = audit_handler(tmp_path / "audit.jsonl")
    logger = logging.getLogger("kombu_redisdelay.web")
    logger.setLevel("INFO")
    logger.addHandler(handler)
    viewer = Viewer(site.app, users={"ann": "secret"})
    viewer.client.auth = ("ann", "secret")
    scheduled(site, "a", "b", "\ud800 new\nline")
    viewer.open("/messages", task="shop.*")
    viewer.press("Reschedule", ["a"])
    viewer.press("Reschedule", time="10m")
    viewer.open("/messages", task="shop.*")
    viewer.press("Cancel all")
    viewer.press("Cancel all")
    viewer.client.get("/", auth=("ann", "guess"))
    viewer.close()
    logger.removeHandler(handler)
    handler.close()
    first, second = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    assert datetime.fromisoformat(first.pop("time")).tzinfo is not None
    assert first == {
        "user": "ann",
        "address": "testclient",
        "action": "reschedule",
        "fields": {"time": "10m"},
        "messages": [{"id": "a", "queue": QUEUE}],
        "list": None,
        "outcome": "Rescheduled 1 message.",
        "failed": False,
    }
    assert (second["action"], second["messages"]) == ("cancel-all", None)
    assert second["list"] == {"state": "scheduled", "task": "shop.*"}


def test_an_action_that_fails_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    viewer = Viewer(site.app)
    caplog.set_level(logging.INFO, "kombu_redisdelay.web")
    scheduled(site, "a")
    viewer.open("/messages")
    viewer.press("Reschedule", ["a"])
    site.redis.config_set("requirepass", "secret")
    try:
        site.redis.client_kill_filter(_type="normal", skipme=True)
        assert viewer.press("Reschedule", time="3h").status == 503
    finally:
        site.redis.config_set("requirepass", "")
    [record] = [record for record in caplog.records if record.name == "kombu_redisdelay.web.works"]
    assert "reschedule time=3h a: failed, a part of it may be done: " in record.getMessage()
    viewer.close()


@pytest.mark.parametrize("queue", ["", QUEUE])
def test_all_ready_messages(viewer: Viewer, site: Site, queue: str) -> None:
    ready(site, "a", "b")
    ready(site, "c", task="other")
    scheduled(site, "s")
    viewer.open("/messages", state=READY, task="shop.*", queue=queue)
    which = f"of the queue {QUEUE}" if queue else "of all queues"
    assert viewer.press("Cancel all").heading == f"Cancel 2 ready messages {which}, of the task shop.*?"
    assert "Cancelled 2 messages." in viewer.press("Cancel all").text
    assert (ids_of(viewer, READY), ids_of(viewer, SCHEDULED)) == (["c"], ["s"])


@pytest.mark.parametrize("state", [SCHEDULED, READY])
def test_all_of_a_group(viewer: Viewer, site: Site, state: str) -> None:
    countdown = 3600 if state == SCHEDULED else None
    for id, its in {"a": "g", "b": "g", "c": "h"}.items():
        site.send("shop.close", task_id=id, group_id=its, countdown=countdown)
    page = viewer.open("/messages", state=state, related="g")
    assert "Cancel all" in page.buttons
    noun = f"{state} messages"
    assert viewer.press("Cancel all").heading == f"Cancel 2 {noun} of all queues, related to g?"
    assert "Cancelled 2 messages." in viewer.press("Cancel all").text
    assert ids_of(viewer, state) == ["c"]


def test_the_question_shows_what_is_selected(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a", "b", seconds=3610)
    viewer.open("/messages")
    page = viewer.press("Cancel", ["a"])
    assert re.search(r"a of celery, due in 1h: shop.close\('a'", " ".join(page.text.split()))


def test_the_question_shows_times_as_the_rest_does(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a", seconds=600)
    viewer.open("/messages", before="2999-01-01T00:00", after="5m")
    page = viewer.press("Cancel all")
    assert page.heading == "Cancel 1 scheduled message of all queues?"
    said = " ".join(page.text.split())
    assert re.search(
        r"Only those that are due [\d-]{10} [\d:]{8} UTC or later, and before 2999-01-01 00:00:00 UTC\.", said
    )
    assert len(re.findall("<time datetime=[^>]* data-exactly>", page.source)) == 2


def resend(site: Site, id: str) -> None:
    """Schedule a second message with this id, as a worker does that gets a task too early."""
    site.send("shop.close", args=[id], task_id=id, countdown=7200)


@pytest.mark.parametrize("button", ["Cancel", "Deliver now"])
def test_two_messages_with_one_id(viewer: Viewer, site: Site, button: str) -> None:
    scheduled(site, "a", "b")
    resend(site, "a")
    viewer.open("/messages")
    page = viewer.press(button, ["a"])
    assert page.heading == _question(button, "2 messages")
    assert "2 messages of the queue celery have the id a. This is about all of them." in page.text
    assert " 2 messages." in viewer.press(button).text
    assert ids_of(viewer, SCHEDULED) == ["b"]


def test_a_ready_message_with_the_id_of_a_scheduled_one(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a")
    ready(site, "a")
    viewer.open("/messages")
    page = viewer.press("Cancel", ["a"])
    assert page.heading == "Cancel 2 messages?"
    assert "a of celery, ready, ready since" in " ".join(page.text.split())
    viewer.open("/messages")
    # This one is done to what is scheduled only.
    assert viewer.press("Deliver now", ["a"]).heading == "Deliver 1 message now?"


def test_two_dead_letters_with_one_id(viewer: Viewer, site: Site) -> None:
    dead(site, "a", "a", "b")
    viewer.open("/messages", state=DEAD)
    assert viewer.press("Remove", ["a"]).heading == "Remove 2 messages?"
    assert "Removed 2 messages." in viewer.press("Remove").text


def test_more_than_was_asked_about(viewer: Viewer, site: Site) -> None:
    scheduled(site, *"abcde")
    viewer.open("/messages", queue="celery")
    assert viewer.press("Cancel all").heading.startswith("Cancel 5 scheduled messages")
    scheduled(site, *"fgh")
    page = viewer.press("Cancel all")
    assert page.heading.startswith("Cancel 8 scheduled messages")
    assert "There are more messages than when you were asked." in page.text
    assert viewer.app.state.site.messages.count() == 8
    # Some have gone: it is not about more.
    viewer.app.state.site.messages.cancel(ids=["a"])
    assert "Cancelled 7 messages." in viewer.press("Cancel all").text


def test_those_that_come_meanwhile_are_meant_too(viewer: Viewer, site: Site) -> None:
    scheduled(site, *"abcde")
    viewer.open("/messages")
    form = viewer.press("Cancel all").forms[-1]
    assert form.boxes == {"1": "newcomers"}
    scheduled(site, *"fgh")
    pairs = [*form.fields, ("newcomers", "1"), form.buttons["Cancel all"]]
    assert "Cancelled 8 messages." in viewer.send("/act", pairs).text


def test_enter_without_a_script_does_nothing(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a", "b")
    viewer.open("/messages", task="shop.*")
    [form] = [form for form in viewer.at.forms if "id" in form.boxes.values()]
    # A browser presses the first button.
    first = next(iter(form.buttons))
    page = viewer.press(first, ["a"])
    assert (page.heading, page.ids) == ("Messages", ["a", "b"])


def test_a_count_that_is_not_known_says_what_was_looked_at(
    viewer: Viewer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kombu_redisdelay.web.questions.COUNTED_AT_MOST", 3)
    scheduled(site, *"abcdefg")
    viewer.open("/messages", task="*")
    question = viewer.press("Cancel all").heading
    assert question.startswith(
        "Cancel all scheduled messages that match, 3 or more (only the first 3 of 7 were looked at),"
    )
