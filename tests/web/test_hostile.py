"""What anybody may publish neither runs in a browser nor breaks a page, and can be acted on."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import pytest

from kombu_redisdelay import Selection
from tests.cli.site import QUEUE, Site
from tests.web.states import payload, scheduled
from tests.web.viewer import Page, Viewer

#: Ids, names of tasks and of queues.
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE",
    "a&amp;b&lt;",
    "\x1b[31mred\x07\x00",
    "\u202eevil\u200b",
    '/?#&"<>%2F+ ;=',
    "{{ 7 * 7 }}",
    "a" * 5000,
    "новый 队列",
)


def known(viewer: Viewer, state: str = "scheduled") -> list[str]:
    return [message.id for message in viewer.app.state.site.messages.select(Selection(state=state))]


#: UTF-8 has no bytes for these, so that they come from another publisher's JSON only.
ALONE = ("\ud800 alone", "\udcff")


def publish_ready(site: Site, id: str) -> None:
    """As another publisher would, with an id and a task of this name."""
    message = json.loads(payload(site, "id", "task"))
    message["headers"] |= {"id": id, "task": id}
    message["properties"]["correlation_id"] = id
    site.store.remember(QUEUE)
    site.redis.lpush(site.store.ready_keys(QUEUE)[0], json.dumps(message))


def check(page: Page) -> None:
    """There is no element that is not ours, and no character to be seen that is not printable."""
    assert page.status == 200
    assert page.elements.count("script") == 1
    assert "img" not in page.elements
    assert "".join(page.text.split()).replace("\N{NARROW NO-BREAK SPACE}", "").isprintable()


@pytest.mark.parametrize("text", HOSTILE)
def test_scheduled_ones(viewer: Viewer, site: Site, text: str) -> None:
    scheduled(site, text, task=text)
    scheduled(site, "other")
    look_and_cancel(viewer, "scheduled", text)


@pytest.mark.parametrize("text", [*HOSTILE, *ALONE])
def test_ready_ones(viewer: Viewer, site: Site, text: str) -> None:
    publish_ready(site, text)
    publish_ready(site, "other")
    look_and_cancel(viewer, "ready", text.encode(errors="backslashreplace").decode())


def look_and_cancel(viewer: Viewer, state: str, text: str) -> None:
    check(viewer.open("/messages", state=state))
    check(viewer.open("/message", id=text))
    assert state in viewer.at.text
    viewer.open("/messages", state=state)
    check(viewer.press("Cancel", [text]))
    check(viewer.press("Cancel"))
    assert "Cancelled 1 message." in viewer.at.text
    assert known(viewer, state) == ["other"]


@pytest.mark.parametrize("text", HOSTILE)
def test_names_of_queues(viewer: Viewer, site: Site, text: str) -> None:
    scheduled(site, "a", queue=text)
    scheduled(site, "b")
    for path in ("/", "/doctor", "/messages"):
        check(viewer.open(path))
    check(viewer.open("/queue", name=text))
    check(viewer.press("Pause"))
    check(viewer.press("Pause"))
    assert "is paused." in viewer.at.text
    assert viewer.app.state.site.queues.limits(text).is_paused
    assert viewer.open("/messages", queue=text).ids == ["a"]
    viewer.press("Cancel all")
    assert "Cancelled 1 message." in viewer.press("Cancel all").text
    assert known(viewer) == ["b"]


@pytest.mark.parametrize("text", ALONE)
@pytest.mark.parametrize(
    ("path", "field"), [("/queue", "name"), ("/messages", "queue"), ("/messages", "task")]
)
def test_what_nothing_can_be_called(viewer: Viewer, path: str, field: str, text: str) -> None:
    check(viewer.open(path, **{field: text}))


@pytest.mark.parametrize("text", ALONE)
def test_an_id_that_nothing_can_have(viewer: Viewer, site: Site, text: str) -> None:
    scheduled(site, "a")
    assert viewer.open("/message", id=text).status == 404
    fields = viewer.open("/messages").forms[-1].fields
    pairs = [*fields, ("action", "cancel"), ("id", quote(text, errors="surrogatepass")), ("confirmed", "1")]
    assert "Cancelled 0 messages. 1 of the selected ones had moved on." in viewer.send("/act", pairs).text


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\xff\xfe not\na message",
        b"[" * 100_000,
        b'{"headers": 1}',
        b'{"headers": {}, "properties": {"priority": 1' + b"0" * 400 + b"}}",
    ],
)
def test_entries_that_are_no_messages(viewer: Viewer, site: Site, entry: bytes) -> None:
    site.store.remember(QUEUE)
    with site.redis.client() as client:
        client.rpush(site.store.ready_keys(QUEUE)[0], entry)
        client.lpush(site.store.keys(QUEUE).dead, f"{site.now_ms()} 1 0 <b>why\n".encode() + entry)
    for state in ("ready", "dead"):
        page = viewer.open("/messages", state=state)
        assert (page.status, len(page.ids)) == (200, 1)
        assert viewer.open("/message", id=page.ids[0]).status == 200
    assert viewer.open("/").status == 200


def test_ids_that_are_large(viewer: Viewer, site: Site) -> None:
    large = "é" * 50_000
    scheduled(site, *(f"{number}{large}" for number in range(3)))
    site.send(args=["a"], task_id="a", countdown=7200, root_id=large, parent_id=large, group_id=large)
    page = viewer.open("/messages")
    check(page)
    assert len(page.source) < 100_000
    assert page.ids == ["a"]
    assert len(viewer.open("/message", id="a").source) < 100_000
    viewer.open("/messages")
    assert "Cancelled 4 messages." in confirmed(viewer, "Cancel all")


def confirmed(viewer: Viewer, button: str) -> str:
    viewer.press(button)
    return viewer.press(button).text


def test_headers_without_end(viewer: Viewer, site: Site) -> None:
    scheduled(site, "a")
    site.send(task_id="b", headers={f"header{number}": number for number in range(10_000)})
    page = viewer.open("/message", id="b")
    assert len(page.source) < 50_000
    assert re.search(r"and 99\d\d more", page.text.replace("\N{NARROW NO-BREAK SPACE}", ""))


def test_an_id_that_many_messages_have(viewer: Viewer, site: Site) -> None:
    for _ in range(30):
        site.send(task_id="a")
    page = viewer.open("/message", id="a")
    assert page.source.count("<section") == 20
    assert "20 messages or more have this id" in page.text


def test_queues_without_end(viewer: Viewer, site: Site) -> None:
    site.store.remember("q" * 100_000, "é" * 2000)
    scheduled(site, "a", queue="é" * 2000)
    for path in ("/", "/messages", "/doctor"):
        page = viewer.open(path)
        check(page)
        assert len(page.source) < 100_000
    site.store.remember(*(f"queue{number}" for number in range(1000)))
    page = viewer.open("/messages", queue="queue7")
    assert len(page.source) < 20_000
    assert ("queue", "queue7") in page.forms[1].fields


def test_large_arguments(site: Site) -> None:
    viewer = Viewer(site.app, arguments="all")
    for number in range(4):
        site.send(
            args=["x" * 10_000_000], argsrepr="y" * 10_000_000, countdown=3600, task_id=f"large{number}"
        )
    page = viewer.open("/messages")
    assert page.status == 200
    assert len(page.source) < 100_000
    # A page ends when enough was read.
    assert 1 <= len(page.ids) < 4
    found = list(page.ids)
    while "Next page" in page.links:
        page = viewer.open(page.links["Next page"])
        found += page.ids
    assert sorted(found) == [f"large{number}" for number in range(4)]
    page = viewer.open("/message", id="large0")
    assert len(page.source) < 100_000
    viewer.close()


@pytest.mark.parametrize(
    "start", ["x", "W10", "bnVsbA", "WzEsMiwzLDRd", "é", "%FF", "WyJhIiwxZTk5OSwiIiwwXQ", "W" * 9999]
)
@pytest.mark.parametrize("state", ["scheduled", "ready", "dead"])
def test_a_page_that_there_is_not(viewer: Viewer, state: str, start: str) -> None:
    page = viewer.open(f"/messages?state={state}&from={start}")
    assert page.status in (200, 400)
