"""What each page shows, in each state of the broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from html import unescape

import pytest
from kombu.entity import Queue

from kombu_redisdelay import MessageInfo, Messages, Selection
from kombu_redisdelay.broker.processes import new_consumer
from kombu_redisdelay.web import messages as messages_of_the_page
from kombu_redisdelay.web.words import number
from tests.cli.site import QUEUE, Site
from tests.web.states import dead, delivered, held, ready, scheduled
from tests.web.viewer import Viewer
from tools.harness.full import fill
from tools.harness.redis_server import RedisServer

PAGES = ("/", "/messages", "/messages?state=ready", "/messages?state=unacked", "/messages?state=dead",
         "/failed", "/queue?name=celery", "/doctor")  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_an_empty_broker(viewer: Viewer, path: str) -> None:
    page = viewer.open(path)
    assert page.status == 200
    assert page.heading


def test_an_empty_list_says_so(viewer: Viewer) -> None:
    assert "No scheduled messages." in viewer.open("/messages").text
    assert "No dead letters that match." in viewer.open("/messages", state="dead", queue="a").text


def test_the_overview_counts(viewer: Viewer, site: Site) -> None:
    ready(site, "r1", "r2")
    scheduled(site, "s1", "s2", "s3")
    dead(site, "d")
    held(site, "h")
    viewer.app.state.site.queues.pause("emails")
    page = viewer.open("/")
    assert [page.links[name] for name in ("2", "3", "1")] == [
        "/messages?state=ready&queue=celery",
        "/messages?state=scheduled&queue=celery",
        "/messages?state=dead&queue=celery",
    ]
    assert "≤ 1h" in page.text


def test_a_queue_that_refuses_says_how_full_it_is(site: Site) -> None:
    arguments = {"x-max-length": 4, "x-overflow": "reject-publish"}
    site.app.conf.task_queues = [Queue(QUEUE, queue_arguments=arguments), Queue("emails")]
    ready(site, "r1", "r2")
    scheduled(site, "s1")
    viewer = Viewer(site.app)
    try:
        assert viewer.open("/").text.count(" % of ") == viewer.open("/").text.count("75 % of 4") == 1
        text = viewer.open("/queue", name=QUEUE).text
        assert "before new work is refused" in text
        assert "4; 75 % of these wait" in text
        assert "refused" not in viewer.open("/queue", name="emails").text
    finally:
        viewer.close()


def test_the_overview_says_how_full_redis_is(viewer: Viewer, site: Site) -> None:
    fill(site.redis)
    try:
        text = viewer.open("/").text
    finally:
        site.redis.config_set("maxmemory", 0)
    assert re.search(r"Memory of Redis: \d+ MiB used of \d+ MiB \(maxmemory\)\.", text)
    assert "it is full, and publishing fails" in text


def test_what_fills_redis(viewer: Viewer, site: Site) -> None:
    ready(site, "a", "b", task="shop.render")
    scheduled(site, "c", task="<b>bold</b>\x1b[2J")
    page = viewer.open("/memory")
    assert page.heading == "What fills Redis"
    assert "shop.render" in page.text
    assert "<b>bold</b>" in page.text
    assert "\x1b" not in page.source
    assert "<b>bold" not in page.source
    assert page.links["shop.render"] == "/messages?state=ready&queue=celery&task=shop.render"
    # The largest message of a task is a link to it.
    assert "/message?id=c" in page.links.values()
    # Without it, a card of a narrow window does not say which number is what.
    assert 'data-label="Of Redis"' in page.source
    assert "Expired" not in page.text


def test_what_fills_redis_and_has_expired(viewer: Viewer, site: Site) -> None:
    site.send("shop.render", expires=datetime(2026, 1, 1, tzinfo=timezone.utc))
    page = viewer.open("/memory")
    assert "Expired" in page.text
    assert "100 %" in page.text


def test_the_doctor_speaks_below_the_queues(viewer: Viewer, site: Site) -> None:
    scheduled(site, "s")
    source = viewer.open("/").source
    assert 0 < source.index('id="queues"') < source.index("The doctor has")


def test_it_names_messages_where_no_worker_looks(viewer: Viewer, site: Site) -> None:
    scheduled(site, "s")
    message = '{"body": "", "headers": {"id": "1"}, "properties": {"delivery_tag": "1"}}'
    site.redis.lpush("celery:4", message)
    assert "1 message in &#39;celery:4&#39;, where no worker of this app looks" in viewer.open("/").source


@pytest.mark.parametrize(
    ("state", "put"), [("scheduled", scheduled), ("ready", ready), ("unacked", held), ("dead", dead)]
)
def test_a_list_and_one_message(viewer: Viewer, site: Site, state: str, put) -> None:  # type: ignore[no-untyped-def]
    put(site, "one")
    page = viewer.open("/messages", state=state)
    assert ("1 dead letter." if state == "dead" else f"1 {state} message.") in page.text
    assert "shop.close('one')" in page.text
    assert page.links["one"] == "/message?id=one"
    page = viewer.open(page.links["one"])
    assert (page.status, page.heading) == (200, "one")
    assert state in page.text
    assert "argsrepr" in page.text


def test_an_id_that_nothing_has(viewer: Viewer) -> None:
    page = viewer.open("/message", id="nothing")
    assert (page.status, "No message has this id now." in page.text) == (404, True)


def test_filters(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a", task="shop.close")
    scheduled(site, "b", task="shop.open", queue="emails", seconds=7200)
    assert viewer.open("/messages", task="*.open").ids == ["b"]
    assert viewer.open("/messages", queue=QUEUE).ids == ["a"]
    assert viewer.open("/messages", before="90m").ids == ["a"]
    assert viewer.open("/messages", after="90m").ids == ["b"]
    page = viewer.open("/messages", before="soon")
    assert (page.status, page.ids) == (400, [])
    assert "Before: 'soon' is neither" in page.text


def test_those_that_have_expired(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a")
    site.send("shop.close", task_id="b", countdown=3600, expires=datetime(2026, 1, 1, tzinfo=timezone.utc))
    page = viewer.open("/messages", expired="1")
    assert page.ids == ["b"]
    assert "1 match, of 2 scheduled messages in all." in page.text
    assert 'data-label="Expires"' in page.source
    page = viewer.press("Cancel all")
    assert page.heading == "Cancel 1 scheduled message of all queues, only those that have expired?"
    assert viewer.press("Cancel all").ids == []
    page = viewer.open("/messages")
    assert (page.ids, 'data-label="Expires"' in page.source) == (["a"], False)


def test_what_is_shown_of_arguments(site: Site) -> None:
    scheduled(site, "secret")
    for shown, in_list, in_body in (("all", True, True), ("shortened", True, False), ("none", False, False)):
        viewer = Viewer(site.app, arguments=shown)
        assert ("shop.close('secret')" in viewer.open("/messages").text) is in_list
        page = viewer.open("/message", id="secret")
        assert ("argsrepr" in page.text) is in_list
        assert ("Message" in page.source.partition("<h3>Message</h3>")[1]) is in_body
        viewer.close()


def test_by_an_argument(site: Site) -> None:
    scheduled(site, "a", "b")
    viewer = Viewer(site.app, arguments="all")
    assert viewer.open("/messages", args="a").ids == ["a"]
    assert viewer.press("Cancel all").heading == (
        "Cancel 1 scheduled message of all queues, with the argument a?"
    )
    viewer.press("Cancel all")
    assert viewer.open("/messages").ids == ["b"]
    viewer.close()


def test_who_may_not_see_all_arguments_cannot_find_them_out(site: Site) -> None:
    scheduled(site, "secret")
    for shown in ("shortened", "none"):
        viewer = Viewer(site.app, arguments=shown)
        assert 'name="args"' not in viewer.open("/messages").source
        found = viewer.open("/messages", args="s*")
        assert (found.status, found.ids) == (400, [])
        assert "Args: this page does not show all arguments" in found.text
        viewer.close()


def test_what_was_delivered(viewer: Viewer, site: Site) -> None:
    delivered(site, "a", "b", "c")
    page = viewer.open("/queue", name=QUEUE)
    assert page.status == 200
    # In the minute ten minutes ago, and in the hour three hours ago.
    places = re.findall(r'x="([\d.]+)" .*: 3 messages</title>', page.source)
    assert [float(place) for place in places] == [
        pytest.approx(49 / 60 * 100, abs=100 / 60),
        pytest.approx(164 / 168 * 100, abs=100 / 168),
    ]


def test_a_queue_that_is_paused_and_limited(viewer: Viewer) -> None:
    queues = viewer.app.state.site.queues
    queues.pause(QUEUE)
    queues.limit(QUEUE, rate="100/m", concurrency=20)
    page = viewer.open("/queue", name=QUEUE)
    assert page.heading == "celery paused limited"
    assert "100/m" in page.text
    assert "Resume" in page.buttons


def test_no_such_page(viewer: Viewer) -> None:
    assert viewer.open("/nothing").status == 404


@pytest.mark.parametrize("path", [*PAGES[:-1], "/message?id=a"])
def test_redis_is_away_and_comes_back(path: str) -> None:
    with RedisServer() as server:
        site = Site(server)
        viewer = Viewer(site.app)
        assert viewer.open(path).status in (200, 404)
        server.stop()
        page = viewer.open(path)
        assert (page.status, page.heading) == (503, "Redis does not answer as it should")
        server.start()
        server.wait_ready()
        assert viewer.open(path).status in (200, 404)
        viewer.close()
        site.close()


def test_the_doctor_imports_the_tasks_as_a_worker_does(viewer: Viewer, site: Site) -> None:
    site.app.conf.imports = ["no_such_module_of_a_test"]
    assert "module 'no_such_module_of_a_test' cannot be imported" in viewer.open("/doctor").text


def test_what_the_doctor_found_has_a_time(viewer: Viewer) -> None:
    assert "Examined at " in viewer.open("/doctor").text


def test_redis_is_away_at_the_beginning() -> None:
    with RedisServer() as server:
        site = Site(server)
        server.stop()
        viewer = Viewer(site.app)
        assert viewer.open("/").status == 503
        server.start()
        server.wait_ready()
        assert viewer.open("/").status == 200
        viewer.close()
        site.close()


def test_overdue_messages_have_a_list(site: Site, viewer: Viewer) -> None:
    scheduled(site, "later", "late")
    site.make_due("late", -60_000)
    for page, links in ((viewer.open("/"), 2), (viewer.open("/queue", name=QUEUE), 1)):
        addresses = re.findall(r'href="([^"]*before=0s)"', page.source)
        assert len(addresses) == links
        for address in addresses:
            assert viewer.open(unescape(address)).ids == ["late"]


def test_why_a_message_is_late(site: Site, viewer: Viewer) -> None:
    scheduled(site, "late")
    assert "Why it waits" not in viewer.open("/message", id="late").text
    site.make_due("late", -60_000)
    assert "Why it waits though it is due" in viewer.open("/message", id="late").text
    assert "No worker consumes from the queue" in viewer.at.text


@pytest.mark.parametrize("path", ["/", "/doctor"])
def test_a_finding_has_a_link_to_its_queue(site: Site, viewer: Viewer, path: str) -> None:
    name = "<b>a queue</b>"
    ready(site, "a", queue=name)
    page = viewer.open(viewer.open(path).links[f"queue {name}"])
    assert page.heading == name


def test_a_finding_has_the_action_that_mends_it(site: Site, viewer: Viewer) -> None:
    viewer.app.state.site.queues.pause("emails")
    dead(site, "one")
    site.redis.hset(site.store.keys("sms").limits, "rate", "fast")
    site.redis.hset(site.store.keys("sms").limits, "interval_us", "often")
    site.store.remember("sms")
    page = viewer.open("/doctor")
    assert "Limit" in page.buttons
    assert viewer.open(page.links["See the dead letters"]).ids == ["one"]
    viewer.open("/doctor")
    viewer.press("Resume")
    assert "is not paused any more" in viewer.press("Resume").text
    assert "paused since" not in viewer.open("/doctor").text


def test_pausing_a_queue_that_nobody_has_used(site: Site, viewer: Viewer) -> None:
    viewer.open("/queue", name="tpyo")
    assert "Nobody has used this queue yet." in viewer.press("Pause").text
    ready(site, "a", queue="used")
    viewer.open("/queue", name="used")
    assert "Nobody has used" not in viewer.press("Pause").text


def test_the_charts_have_scales(site: Site, viewer: Viewer) -> None:
    assert 'class="scale"' not in viewer.open("/queue", name=QUEUE).source
    delivered(site, *(f"x{number}" for number in range(1203)))
    source = viewer.open("/queue", name=QUEUE).source
    assert re.findall(r'class="scale"[^>]*><span>([^<]*)</span> <span>0</span>', source) == [number(1203)] * 2
    assert re.findall(r"<li>(\d+[md] ago)</li>", source) == ["60m ago", "7d ago"]
    assert source.count("<li>now</li>") == 2


def test_the_worker_that_holds_it(site: Site, viewer: Viewer) -> None:
    ready(site, "h1")
    [payload] = site.redis.lrange(QUEUE, 0, -1)
    name = new_consumer("celery@web-1")
    site.add_consumer(name, 60_000)
    site.redis.hset(site.store.keys(QUEUE).unacked(name), "1", f"0:{payload}")
    assert "celery@web-1" in viewer.open("/messages", state="unacked").text
    site.redis.delete(QUEUE)
    assert "Taken, by celery@web-1, host" in " ".join(viewer.open("/message", id="h1").text.split())
    assert site.rows("show", "h1")[0]["worker"] == "celery@web-1"


def test_a_message_that_is_hard_to_find_is_looked_for_less_often(
    viewer: Viewer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled(site, "s")
    now = 0.0
    # What a search takes on this machine is nothing, however busy it is.
    monkeypatch.setattr(messages_of_the_page, "monotonic", lambda: now)
    assert 'data-seconds="5"' in viewer.open("/message", id="s").source
    find = Messages.select

    def find_slowly(messages: Messages, selection: Selection, *, limit: int) -> Iterator[MessageInfo]:
        nonlocal now
        now += 0.2
        return find(messages, selection, limit=limit)

    monkeypatch.setattr(Messages, "select", find_slowly)
    [seconds] = re.findall(r'data-seconds="(\d+)"', viewer.open("/message", id="s").source)
    assert int(seconds) >= 10


def test_what_nobody_has_counted(site: Site, viewer: Viewer) -> None:
    """The history of a queue begins with its first worker."""
    ready(site, "a")
    assert "Published in the last hour\N{EN DASH}" in "".join(
        viewer.open("/queue", name=QUEUE).text.split("\n")
    )
    delivered(site, "b")
    assert "Delivered in the last hour1" in "".join(viewer.open("/queue", name=QUEUE).text.split("\n"))


def test_tasks_that_no_worker_knows(viewer: Viewer, site: Site) -> None:
    id = site.leave_unknown("shop.new", 90)
    text = " ".join(viewer.open("/queue?name=celery").text.split())
    assert "No worker with room knows the taskshop.new, which waits since" in text
    page = viewer.open(f"/message?id={id}").text
    assert "waits for a worker that knows its task" in page
    assert "though it is due" not in page
