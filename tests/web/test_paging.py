"""Page by page, each message is there exactly once."""

from __future__ import annotations

from collections import Counter

import pytest

from kombu_redisdelay import Selection
from kombu_redisdelay.operations import reading as pages
from tests.cli.site import QUEUE, Site
from tests.web.states import dead, failed, held, ready, scheduled
from tests.web.viewer import Viewer


def all_pages(viewer: Viewer, **choice: str) -> Counter[str]:
    """How many times each message is on the pages of a list."""
    page = viewer.open("/messages", **choice)
    found = Counter(page.ids)
    while "Next page" in page.links:
        page = viewer.open(page.links["Next page"])
        found.update(page.ids)
    return found


def test_many_are_due_at_the_same_time(viewer: Viewer, site: Site) -> None:
    queues = ["a", "b", "c", "d#1"]
    ids = [f"m{number}" for number in range(260)]
    for number, id in enumerate(ids):
        scheduled(site, id, queue=queues[number % 4])
    # Three due times for all of them, and the same in all queues.
    now_ms = site.now_ms()
    for number, id in enumerate(ids):
        key = site.store.keys(queues[number % 4]).schedule
        assert site.redis.zadd(key, {id: now_ms + 1_000_000 * (1 + number % 3)}, xx=True, ch=True)
    assert all_pages(viewer) == Counter(ids)
    assert all_pages(viewer, queue="b") == Counter(ids[1::4])


@pytest.mark.parametrize(("state", "put"), [("ready", ready), ("dead", dead), ("unacked", held)])
def test_other_states(viewer: Viewer, site: Site, state: str, put) -> None:  # type: ignore[no-untyped-def]
    ids = [f"m{number}" for number in range(120)]
    put(site, *ids)
    if state != "unacked":
        put(site, *(f"n{number}" for number in range(60)), queue="another")
        ids += [f"n{number}" for number in range(60)]
    found = {
        message.id
        for message in viewer.app.state.site.messages.select(
            Selection(queue=["celery", "another"], state=state)
        )
    }
    assert found == set(ids)
    start, seen = "", Counter[str]()
    while True:
        page = viewer.app.state.site.messages.page(
            Selection(queue=["celery", "another"], state=state), start=start
        )
        seen.update(message.id for message in page.messages)
        start = page.next
        if not start:
            break
    assert seen == Counter(ids)


def test_a_rare_task(viewer: Viewer, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # A press looks at what one script reads.
    monkeypatch.setattr(pages, "LOOKS_FOR", 0)
    scheduled(site, *(f"m{number:02}" for number in range(35)))
    scheduled(site, "rare", task="rare", seconds=9000)
    page = viewer.open("/messages", task="rare")
    assert "Nothing found yet" in page.text
    for searched in (10, 20, 30, 35):
        assert f"Searched so far: about {searched} of 36 scheduled messages." in page.text
        page = viewer.open(page.links["Next page"])
    assert (page.ids, "Searched" in page.text) == (["rare"], False)
    assert all_pages(viewer, task="rare") == Counter(["rare"])
    assert "about 10 of" in viewer.open("/messages", task="rare", searched="²" * 9).text


@pytest.mark.parametrize("state", ["scheduled", "ready", "dead", "unacked", "failed"])
def test_all_that_match_are_on_one_page_each(
    viewer: Viewer, site: Site, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """However little is looked at for a page. What a script leaves out counted for the next page of ready
    messages as if it had been on this one: it began with messages of the page before."""
    monkeypatch.setattr(pages, "LOOKS_FOR", 0)
    put = {"scheduled": scheduled, "ready": ready, "dead": dead, "unacked": held, "failed": failed}[state]
    for number in range(0, 60, 3):
        put(site, f"m{number}", f"n{number}")
        put(site, f"rare{number}", **({} if state == "unacked" else {"task": "rare"}))
    task = "rare" if state != "unacked" else "shop.*"
    messages = viewer.app.state.site.messages
    found = {message.id for message in messages.select(Selection(state=state, task=task))}
    assert len(found) == (60 if state == "unacked" else 20)
    assert all_pages(viewer, state=state, task=task) == Counter(found)


def test_a_search_of_a_large_schedule_takes_few_presses(viewer: Viewer, site: Site) -> None:
    """It took one for each thousand messages. The scripts leave out what has not the name."""
    keys = site.store.keys(QUEUE)
    site.send("shop.close", task_id="m", countdown=3600)
    [stored] = site.redis.hvals(keys.messages)
    for first in range(0, 20_000, 2000):
        names = [f"m{number}" for number in range(first, first + 2000)]
        site.redis.hset(keys.messages, mapping=dict.fromkeys(names, stored))
        site.redis.zadd(keys.schedule, dict.fromkeys(names, site.now_ms() + 3_600_000 + first))
    scheduled(site, "rare", task="shop.rare", seconds=9000)
    for order in ("", "last"):
        presses, page = 0, viewer.open("/messages", task="*rare", order=order)
        while page.ids != ["rare"]:
            presses, page = presses + 1, viewer.open(page.links["Next page"])
        assert presses <= 5
    read = viewer.app.state.site.messages.page(Selection(state="scheduled", task="*rare"))
    assert read.looked_at > 1000


def test_what_goes_meanwhile_takes_nothing_with_it(viewer: Viewer, site: Site) -> None:
    scheduled(site, *(f"m{number:03}" for number in range(60)))
    scheduled(site, "last", queue="other", seconds=9000)
    page = viewer.open("/messages")
    first = page.ids
    viewer.app.state.site.messages.cancel(ids=first)
    following = viewer.open(page.links["Next page"])
    assert len(first) == 50
    assert Counter([*first, *following.ids]) == Counter([*(f"m{number:03}" for number in range(60)), "last"])


def test_the_queue_of_a_page_goes_meanwhile(viewer: Viewer, site: Site) -> None:
    scheduled(site, *(f"m{number:03}" for number in range(50)), queue="gone")
    scheduled(site, "last", queue="other", seconds=9000)
    page = viewer.open("/messages")
    site.redis.delete(*site.redis.keys("*gone*"), "redisdelay:queues")
    site.store.remember("other")
    assert viewer.open(page.links["Next page"]).ids == ["last"]


def test_a_page_of_another_list(viewer: Viewer, site: Site) -> None:
    scheduled(site, *(f"m{number}" for number in range(51)))
    start = viewer.app.state.site.messages.page(Selection(state="scheduled")).next
    page = viewer.open("/messages", **{"queue": "other", "from": start})
    assert (page.status, "this page is not of this list" in page.text) == (400, True)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({}, "120 scheduled messages."),
        ({"queue": "celery"}, "120 scheduled messages in celery."),
        # All of them are on the page.
        ({"task": "rare"}, "1 match, of 120 scheduled messages in all."),
        # Redis counts them.
        ({"before": "2h"}, "119 match, of 120 scheduled messages in all."),
        # They would have to be read.
        ({"task": "shop.*"}, "120 scheduled messages in all."),
    ],
)
def test_how_many_match_is_said(viewer: Viewer, site: Site, choice: dict[str, str], said: str) -> None:
    scheduled(site, *(f"s{number}" for number in range(119)))
    scheduled(site, "far", task="rare", seconds=86_400)
    assert said in " ".join(viewer.open("/messages", **choice).text.split())
