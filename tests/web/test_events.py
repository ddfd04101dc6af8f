"""What the page of one message tells of its life, and of the tasks that it belongs to."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from celery import group

from tests.cli.site import QUEUE, Site
from tests.web.states import dead, failed, held, messages_in_each_state, payload, ready, scheduled
from tests.web.viewer import Page, Viewer


def history(page: Page) -> list[str]:
    """The events, without their times of day."""
    [events] = re.findall(r'<ol class="events">(.*?)</ol>', page.source, re.DOTALL)
    return [" ".join(re.sub("<[^>]*>", "", each).split()) for each in re.findall("<li>(.*?)</li>", events)]


def about(viewer: Viewer, id: str) -> list[str]:
    events = history(viewer.open("/message", id=id))
    # Celery names the process that has published it.
    assert re.fullmatch(r"Published, by \S+@\S+", events[0])
    return events[1:]


def test_a_scheduled_one(viewer: Viewer, site: Site) -> None:
    site.send("a", task_id="s", countdown=3610, expires=7210)
    viewer.app.state.site.messages.reschedule(ids=["s"], countdown=86_430)
    assert about(viewer, "s") == [
        "Scheduled until in 1d",
        "Expires in 2h, a worker that gets it later drops it",
    ]


def test_one_that_is_due_at_another_time_than_it_was_published_for(viewer: Viewer, site: Site) -> None:
    site.send("a", task_id="s", countdown=3610)
    site.make_due("s", 86_430_000)
    wanted, due = about(viewer, "s")
    assert wanted == "Asked for in 1h, the time at which its publisher wants it to run"
    assert due == "Scheduled until in 1d"


def test_one_that_was_requeued(viewer: Viewer, site: Site) -> None:
    failed(site, "f")
    viewer.app.state.site.messages.requeue(ids=["f"])
    events = history(viewer.open("/message", id="f"))
    assert [each.split()[0].rstrip(",") for each in events] == ["Published", "Requeued", "Ready", "Waits"]
    assert events[1].endswith("after it had failed")


def test_a_ready_one(viewer: Viewer, site: Site) -> None:
    ready(site, "r0", "r1")
    site.send("a", task_id="late", expires=-3610, retries=2)
    assert about(viewer, "r1")[1:] == ["Waits, 1 message before it"]
    events = about(viewer, "late")
    assert events[0] == "Retried, 2 times"
    assert events[-1] == "Expired 1h ago, the worker that gets it drops it"
    assert re.fullmatch(r"Ready \S+ ago, since it was published, became due, or was requeued last", events[1])


def test_a_held_one(viewer: Viewer, site: Site) -> None:
    held(site, "h")
    assert about(viewer, "h")[-1] == "Taken, by host ?, process ?"


def test_a_dead_one(viewer: Viewer, site: Site) -> None:
    dead(site, "d")
    assert re.fullmatch(r"Given up \S+ ago, ValueError: it failed", about(viewer, "d")[-1])
    assert about(viewer, "d")[0] == "Came back from a worker, once"


def test_the_page_and_the_command_tell_the_same(viewer: Viewer, site: Site) -> None:
    messages_in_each_state(site)
    again = {"redisdelay-deliveries": 3, **json.loads(payload(site, "again", "shop.close"))}
    site.redis.lpush(QUEUE, json.dumps(again))
    failed(site, "f3")
    viewer.app.state.site.messages.requeue(ids=["f3"])
    for id in ("s1", "blocked", "r1", "h1", "f1", "dead1", "done", "again", "f3"):
        [row] = site.rows("show", id)
        source = viewer.open("/message", id=id).source
        [events] = re.findall(r'<ol class="events">(.*?)</ol>', source, re.DOTALL)
        shown = [
            (what.lower(), moment or None)
            for what, moment in re.findall(r'<li><b>(.*?)</b>(?: <time datetime="(.*?)")?', events)
        ]
        told = [(each["event"], each["at"]) for each in row["life"]]
        # How many are before it has a field of its own there.
        assert [each for each in shown if each[0] != "waits"] == told


def test_links_to_what_it_belongs_to(viewer: Viewer, site: Site) -> None:
    tasks = group(site.app.signature(name) for name in ("a", "b"))
    result = tasks.apply_async(countdown=3600, root_id="the-root", parent_id="the-parent")
    first, second = (child.id for child in result)
    scheduled(site, "another")
    page = viewer.open("/message", id=second)
    assert ", number 2" in page.text
    assert page.links["the-root"] == "/message?id=the-root"
    assert page.links["the-parent"] == "/message?id=the-parent"
    assert sorted(viewer.open(page.links[result.id]).ids) == sorted([first, second])
    assert sorted(viewer.open(page.links["All scheduled messages with this root"]).ids) == sorted(
        [first, second]
    )
    assert viewer.open("/messages", related=first).ids == [first]


@pytest.mark.parametrize("name", [" nightly", "nightly\t", " "])
def test_a_group_whose_id_has_spaces(viewer: Viewer, site: Site, name: str) -> None:
    """Without them it is another group, or all messages."""
    site.send(task_id="a", countdown=3600, group_id="nightly")
    site.send(task_id="b", countdown=3600, group_id=name)
    link, _of_root = [link for link in viewer.open("/message", id="b").links.values() if "related=" in link]
    assert viewer.open(link).ids == ["b"]
    viewer.press("Cancel all")
    viewer.press("Cancel all")
    assert viewer.open("/messages").ids == ["a"]


def test_an_id_that_has_spaces_or_was_copied_with_some(viewer: Viewer, site: Site) -> None:
    scheduled(site, " a")
    scheduled(site, "b")
    assert [viewer.open("/message", id=id).status for id in (" a", "a", "b ", " ")] == [200, 404, 200, 404]


@pytest.mark.parametrize("button", ["Cancel all", "Deliver all now"])
def test_only_those_that_are_related(viewer: Viewer, site: Site, button: str) -> None:
    scheduled(site, "a", "b")
    assert viewer.open("/messages", related="a").ids == ["a"]
    assert viewer.press(button).heading.endswith(" of all queues, related to a?")
    viewer.press(button)
    assert viewer.open("/messages").ids == ["b"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": ["a"], "retries": "many", "expires": 5, "parent_id": {}, "root_id": 1, "group": []},
        {"retries": -1, "expires": "soon", "group_index": "first", "group": "<b>"},
        {"expires": "9999-12-31T23:59:59-23:59"},
        {"expires": "0001-01-01T00:00:00+23:59"},
        {"retries": True, "group": "g", "group_index": 10**30},
    ],
)
def test_headers_of_anybody(viewer: Viewer, site: Site, headers: dict[str, Any]) -> None:
    site.send("a", task_id="odd", headers={"odd": "headers"})
    # Not by our publisher, who refuses some.
    [written] = site.redis.lrange(QUEUE, 0, -1)
    message = json.loads(written)
    message["headers"].update(headers)
    site.redis.lset(QUEUE, 0, json.dumps(message))
    page = viewer.open("/message", id="odd")
    assert (page.status, page.heading) == (200, "odd")
    assert history(page)
