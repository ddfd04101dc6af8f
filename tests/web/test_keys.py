"""The page of the keys of a queue, fair or not, and what can be done to them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kombu.entity import Queue

from kombu_redisdelay.operations import fair
from kombu_redisdelay.web import keys
from tests.cli.site import QUEUE, Site, sort_by_key
from tests.transport.kit import Inbox, drain
from tests.web.states import payload
from tests.web.test_hostile import check
from tests.web.test_sorting import sorted_by
from tests.web.viewer import Page, Viewer


def send(site: Site, *keys: str, **options: Any) -> None:
    for key in keys:
        site.send(headers={"x-key": key}, **options)


def rows(page: Page) -> dict[str, list[str]]:
    """The key of each row -> what its other cells say."""
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page.source, re.DOTALL)[1:]:
        said = (
            " ".join(unescape(re.sub("<[^>]+>", "", cell)).split())
            for cell in re.findall(r"<t[hd][ >].*?</t[hd]>", row, re.DOTALL)
        )
        key, *others = (text for text in said if text)
        found[key] = others
    return found


@pytest.fixture
def reader(site: Site) -> Iterator[Viewer]:
    viewer = Viewer(site.app, read_only=True)
    yield viewer
    viewer.close()


def test_a_queue_that_is_not_fair(viewer: Viewer, site: Site) -> None:
    send(site, *"aaab")
    send(site, "b", countdown=600)
    site.send()
    page = viewer.open("/keys", name=QUEUE)
    assert page.heading == "Keys of celery"
    assert "is not fair" in page.text
    assert "these keys would share it" in page.text
    assert {key: each[0:2] + each[3:5] for key, each in rows(page).items()} == {
        "a": ["3", "60 %", "0", "0"],
        '"" messages without a key': ["1", "20 %", "0", "0"],
        "b": ["1", "20 %", "1", "0"],
    }
    assert {"Make fair", "Limit each key", "Pause", "Resume", "Limit"} == page.buttons
    page = viewer.open("/keys", name="never")
    assert page.text.count("Nobody has used this queue yet.") == 1
    assert "Make fair" not in page.text
    page = viewer.open("/keys")
    assert "Choose a queue first" in page.text
    assert "Make fair" not in page.text


def test_a_fair_queue(viewer: Viewer, site: Site) -> None:
    queues = viewer.app.state.site.queues
    queues.make_fair(QUEUE)
    queues.limit_keys(QUEUE, rate="10/m", concurrency=1)
    queues.limit_key(QUEUE, "b", concurrency=8)
    queues.pause_key(QUEUE, "c")
    send(site, *"aaabbc")
    with site.app.connection_for_read() as connection:
        inbox = Inbox(connection.channel(), QUEUE)
        drain(connection, lambda: len(inbox) == 2 and site.redis.hlen(site.store.keys(QUEUE).limited) == 3)
        page = viewer.open("/keys", name=QUEUE)
        said = " ".join(page.text.split())
        assert "not fair" not in said
        assert "Keys that wait3, 3 of them paused or at a limit" in said
        assert "Limits of each key10/m, burst 1, concurrency 1" in said
        found = rows(page)
        assert [found[key][-2] for key in "abc"] == ["at its limit", "at its limit", "paused"]
        assert found["a"][-1] == "\N{EN DASH}"
        assert found["b"][-1] == "concurrency 8"
        assert re.fullmatch(r"paused for \S+", found["c"][-1])
        assert "Make plain" in page.buttons
        # What waits for a limit has no position.
        page = viewer.open("/messages", state="ready", queue=QUEUE)
        assert (page.status, page.source.count('data-label="Position">?<')) == (200, 4)
        # The other pages say that it is fair.
        said = " ".join(viewer.open("/queue", name=QUEUE).text.split())
        assert "Find Queues celery fair Queue Keys" in said
        assert "Keys that wait3, 3 of them paused or at a limit" in said
        assert viewer.at.links["Keys"] == "/keys?name=celery"
        text = " ".join(viewer.open("/").text.split())
        assert "celery fair" in text
        assert "key limits" in text
    # Nobody is there who moves them.
    queues.make_plain(QUEUE)
    assert "fair until its messages are moved back" in viewer.open("/").text
    assert "workers move its messages back" in viewer.open("/keys", name=QUEUE).text


def test_what_is_not_sorted_by_key(viewer: Viewer, site: Site) -> None:
    viewer.app.state.site.queues.make_fair(QUEUE)
    sort_by_key(site, "a")
    send(site, *"aabc")
    for page in ("/keys", "/queue"):
        said = " ".join(viewer.open(page, name=QUEUE).text.split())
        assert "Keys that wait1; 4 messages are not sorted by key yet" in said
    assert "celery is fair: 1 key waits, and 4 messages are not sorted by key yet" in site.text("stats")
    assert json.loads(site.text("stats", "--json"))["fairness"]["unsorted"] == 4


def test_keys_with_spaces(viewer: Viewer, site: Site) -> None:
    site.text("fair", "-Q", QUEUE, "--force")
    site.send(task_id="of a space", headers={"x-key": " "})
    send(site, "a ", "b c", "")
    page = viewer.open("/keys", name=QUEUE)
    assert set(rows(page)) == {'" "', '"a "', "b c", '"" messages without a key'}
    assert viewer.open(page.links['" "']).ids == ["of%20a%20space"]
    assert {'" "', '"a "'} <= set(re.findall(r'"[^"]*"', site.text("keys", "-Q", QUEUE)))
    # What is shown can be written.
    viewer.open("/keys", name=QUEUE)
    assert viewer.press("Pause", key='" "').heading.startswith('Pause key " " of celery')
    assert 'Key " " of celery: paused.' in viewer.press("Pause").text
    assert viewer.app.state.site.queues.key_limits(QUEUE, " ").paused_since is not None


def test_a_header_of_another_transport_that_is_no_key(viewer: Viewer, site: Site) -> None:
    message = json.loads(payload(site, "id", "task"))
    message["headers"]["x-key"] = 42
    site.redis.lpush(QUEUE, json.dumps(message))
    said = """"" (header 'x-key' of task 'task' must be a text, not 42: write str(42))"""
    assert said in site.text("show", "id")
    assert said in viewer.open("/message", id="id").text


def test_a_key_leads_to_its_messages(viewer: Viewer, site: Site) -> None:
    for key in ("a*[b]", "a-b", ""):
        site.send(task_id=f"of {key}", headers={"x-key": key})
    site.send(task_id="later", headers={"x-key": "s"}, countdown=600)
    page = viewer.open("/keys", name=QUEUE)
    for key, id in {"a*[b]": "of%20a%2A%5Bb%5D", "a-b": "of%20a-b", '""': "of%20", "s": "later"}.items():
        assert viewer.open(page.links[key]).ids == [id]
    assert "Key" in viewer.at.text


@pytest.mark.parametrize(
    ("sort", "expected", "column", "how"),
    [
        ("", "bac", "Ready", "descending"),
        ("nonsense", "bac", "Ready", "descending"),
        ("ready", "cab", "Ready", "ascending"),
        ("key", "abc", "Key", "ascending"),
        ("-scheduled", "acb", "Scheduled", "descending"),
    ],
)
def test_sorted_by_any_column(
    viewer: Viewer, site: Site, sort: str, expected: str, column: str, how: str
) -> None:
    send(site, *"bbbaac")
    send(site, *"aac", countdown=600)
    page = viewer.open("/keys", name=QUEUE, sort=sort)
    assert ("".join(rows(page)), sorted_by(page)) == (expected, {column: how})
    page = viewer.open(page.links[column])
    assert sorted_by(page)[column] != how


def test_many_keys(viewer: Viewer, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_SHOWN", 5)
    send(site, *(f"key-{number}" for number in range(12)))
    page = viewer.open("/keys", name=QUEUE)
    assert (len(rows(page)), "12 keys." in page.text, "and 7 more" in page.text) == (5, True, True)
    page = viewer.open("/keys", name=QUEUE, search="Y-1", sort="key")
    assert (list(rows(page)), "3 of 12 keys." in page.text) == (["key-1", "key-10", "key-11"], True)
    assert "search=Y-1" in page.links["Ready"]
    assert "No key contains this." in viewer.open("/keys", name=QUEUE, search="nothing").text


def test_more_keys_than_are_read(viewer: Viewer, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_KEYS", 2)
    monkeypatch.setattr("kombu_redisdelay.operations.key_stats.MOST_READ", 0)
    site.text("fair", "-Q", QUEUE, "--force")
    sort_by_key(site, *"abbbccdeff")
    viewer.app.state.site.queues.pause_key(QUEUE, "z")
    page = viewer.open("/keys", name=QUEUE)
    assert list(rows(page)) == ["b", "c", "z"]
    assert rows(page)["b"][:2] == ["3", "30 %"]
    assert "6 keys. Of these, the 3 with the most ready messages are read." in page.text
    assert "and 3 more" in page.text
    # A key is always found by its name.
    assert list(rows(viewer.open("/keys", name=QUEUE, search="e"))) == ["e"]
    assert viewer.open("/keys", name=QUEUE, search="\ud800").status == 200


def test_what_is_not_read(viewer: Viewer, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kombu_redisdelay.operations.key_stats.MOST_READ", 3)
    send(site, *"aaaa")
    send(site, *"aaaa", countdown=600)
    page = viewer.open("/keys", name=QUEUE)
    assert "1 ready message more, which is not sorted by key" in page.text
    assert rows(page)["a"][0:2] + rows(page)["a"][3:4] == ["3", "75 %", "?"]


def test_fair_and_plain(viewer: Viewer, site: Site) -> None:
    send(site, "a")
    viewer.open("/queue", name=QUEUE)
    assert viewer.press("Make fair").heading.startswith("Make celery fair? Workers then serve")
    assert fair.fair_states(site.store, [QUEUE]) == [""]
    page = viewer.press("Make fair")
    assert (page.heading, "celery is fair now." in page.text) == ("Keys of celery fair", True)
    assert fair.fair_states(site.store, [QUEUE]) == ["on"]
    sort_by_key(site)
    assert "Make fair" not in viewer.open("/queue", name=QUEUE).buttons
    viewer.open("/keys", name=QUEUE)
    assert viewer.press("Make plain").heading.startswith("Make celery plain? Workers then move")
    assert "celery will not be fair: workers move its messages back." in viewer.press("Make plain").text
    assert fair.fair_states(site.store, [QUEUE]) == ["off"]
    viewer.press("Make fair")
    assert "celery is fair again." in viewer.press("Make fair").text


def test_the_question_before_a_queue_is_plain_counts_what_is_paused(viewer: Viewer, site: Site) -> None:
    queues = viewer.app.state.site.queues
    queues.make_fair(QUEUE)
    sort_by_key(site, *"aaabc")
    viewer.open("/keys", name=QUEUE)
    question = viewer.press("Make plain").heading
    assert "paused" not in question
    queues.pause_key(QUEUE, "a")
    queues.limit_key(QUEUE, "b", concurrency=1)
    viewer.open("/keys", name=QUEUE)
    question = viewer.press("Make plain").heading
    assert "1 key is paused: its 3 ready messages will run." in question
    assert "The limits of keys do not hold until it is fair again." in question
    for key in "cz":
        queues.pause_key(QUEUE, key)
    viewer.open("/keys", name=QUEUE)
    assert "3 keys are paused: their 4 ready messages will run." in viewer.press("Make plain").heading


def test_a_queue_that_expires(site: Site) -> None:
    site.app.conf.task_queues = [Queue(QUEUE, queue_arguments={"x-expires": 60_000})]
    viewer = Viewer(site.app)
    viewer.open("/keys", name=QUEUE)
    viewer.press("Make fair")
    page = viewer.press("Make fair")
    assert page.status == 400
    assert "cannot be fair, because it is declared with 'x-expires'" in page.text
    assert fair.fair_states(site.store, [QUEUE]) == [""]
    viewer.close()


def test_limits_of_each_key(viewer: Viewer, site: Site) -> None:
    viewer.open("/keys", name=QUEUE)
    page = viewer.press("Limit each key")
    assert page.heading == "Limit what all workers together take of each key of celery?"
    assert "An empty field means no limit." in page.text
    assert viewer.press("Limit each key", burst="3").status == 400
    assert "Burst needs a rate." in viewer.at.text
    assert viewer.press("Limit each key", burst="", concurrency="none").status == 400
    assert "Concurrency must be a whole number from 1, not &#39;none&#39;" in viewer.at.source
    page = viewer.press("Limit each key", rate="10/m", concurrency="2")
    assert "Each key of celery: 10/m, burst 1, concurrency 2. It counts when the queue is fair." in page.text
    # The next question has what there is, but not a burst that is the default: this one follows the rate.
    page = viewer.press("Limit each key")
    expected = {"rate": "10/m", "burst": "", "concurrency": "2"}
    assert expected.items() <= dict(page.forms[-1].fields).items()
    page = viewer.press("Limit each key", rate="", burst="", concurrency="")
    assert "Each key of celery: no limits." in page.text
    assert not viewer.app.state.site.queues.key_limits(QUEUE).is_limited


def test_limits_of_some_keys(viewer: Viewer, site: Site) -> None:
    queues = viewer.app.state.site.queues
    queues.make_fair(QUEUE)
    queues.limit_keys(QUEUE, rate="10/m")
    send(site, *"abc")
    viewer.open("/keys", name=QUEUE)
    page = viewer.press("Limit", ["a"])
    assert page.heading == "Give key a of celery other limits?"
    assert "An empty field means the limit of each key." in page.text
    # What it has for itself, not what each key has.
    assert {"rate": "", "concurrency": ""}.items() <= dict(page.forms[-1].fields).items()
    page = viewer.press("Limit", concurrency="8")
    assert "Key a of celery: 10/m, burst 1, concurrency 8." in page.text
    assert "It counts" not in page.text
    assert ("concurrency", "8") in viewer.press("Limit", ["a"]).forms[-1].fields
    assert viewer.press("Limit", concurrency="0").status == 400
    page = viewer.press("Limit", concurrency="")
    assert "Key a of celery: 10/m, burst 1, as each key." in page.text
    queues.limit_key(QUEUE, "a", rate="50/s")
    page = viewer.press("Limit", ["a"])
    assert {"rate": "50/s", "burst": ""}.items() <= dict(page.forms[-1].fields).items()
    assert "Key a of celery: 1/s, burst 1." in viewer.press("Limit", rate="1/s").text
    page = viewer.press("Limit", ["a", "b"])
    assert page.heading == "Give 2 keys of celery other limits?"
    assert "2 keys of celery: 1/s, burst 1." in viewer.press("Limit", rate="1/s").text
    assert [queues.key_limits(QUEUE, key).rate for key in "abc"] == ["1/s", "1/s", "10/m"]


def test_pausing_and_resuming(viewer: Viewer, site: Site) -> None:
    queues = viewer.app.state.site.queues
    queues.make_fair(QUEUE)
    send(site, "a", "b", "c")
    site.send()
    viewer.open("/keys", name=QUEUE)
    page = viewer.press("Pause", ["a", "", "c"])
    assert page.heading.startswith("Pause 3 keys of celery for all workers?")
    # It says which ones.
    assert re.findall(r'<li><span class="id">([^<]*)</span>', page.source) == ["&#34;&#34;", "a", "c"]
    assert "3 keys of celery: paused." in viewer.press("Pause").text
    paused = {key: queues.key_limits(QUEUE, key).paused_since is not None for key in ("a", "b", "c", "")}
    assert paused == {"a": True, "b": False, "c": True, "": True}
    assert viewer.press("Resume", [""]).heading == ('Let workers take messages of key "" from celery again?')
    assert 'Key "" of celery: not paused any more.' in viewer.press("Resume").text
    viewer.press("Pause")
    assert "No key was selected." in viewer.at.text


def test_the_page_comes_back_as_it_was(viewer: Viewer, site: Site) -> None:
    send(site, "a-1", "a-2", "a-3", "b-1")
    same = {"name": [QUEUE], "sort": ["-key"], "search": ["a-"]}

    def begin(button: str, *ids: str) -> Page:
        viewer.open("/keys", name=QUEUE, sort="-key", search="a-")
        return viewer.press(button, ids)

    for button, ids, asked in (
        ("Pause", ["a-2"], {}),
        ("Resume", ["a-2"], {}),
        ("Limit", ["a-1", "a-3"], {"rate": "1/s"}),
        ("Make fair", [], {}),
        ("Limit each key", [], {"concurrency": "2"}),
    ):
        page = begin(button, *ids)
        assert parse_qs(urlsplit(page.links["No, go back"]).query) == same
        page = viewer.press(button, **asked)
        assert parse_qs(urlsplit(str(page.address)).query) == same
        assert list(rows(page)) == ["a-3", "a-2", "a-1"]
    # After a mistake, too.
    begin("Limit", "a-1")
    viewer.press("Limit", rate="nonsense")
    assert list(rows(viewer.press("Limit", rate="2/s"))) == ["a-3", "a-2", "a-1"]
    # Also if nothing is selected.
    assert list(rows(begin("Pause"))) == ["a-3", "a-2", "a-1"]


def test_a_key_that_is_written(viewer: Viewer, site: Site) -> None:
    queues = viewer.app.state.site.queues
    send(site, "a")

    def another(button: str, key: str) -> Page:
        viewer.open("/keys", name=QUEUE)
        return viewer.press(button, key=key)

    assert another("Pause", " tenant-42 ").heading.startswith("Pause key tenant-42 of celery")
    assert "Key tenant-42 of celery: paused. It counts when" in viewer.press("Pause").text
    assert queues.key_limits(QUEUE, "tenant-42").paused_since is not None
    assert queues.key_limits(QUEUE, "a").paused_since is None
    # Beside what is ticked.
    assert viewer.press("Resume", ["a"], key="tenant-42").heading.startswith(
        "Let workers take messages of 2 keys"
    )
    another("Pause", '""')
    assert 'Key "" of celery: paused.' in viewer.press("Pause").text
    for button in ("Pause", "Resume", "Limit"):
        # The form is there again, with what was written.
        for key, error in {
            "x" * 65: "A key must have 64 bytes at most",
            'a"b': "A key must have no control characters, quotation marks or backslashes: 'a\"b'.",
        }.items():
            page = another(button, key)
            assert (page.heading, error in page.text) == ("Keys of celery", True)
            assert ("key", key) in [field for form in page.forms for field in form.fields]
    assert "No key was selected." in another("Limit", " ").text


def test_partitions(site: Site) -> None:
    site.app.conf.broker_transport_options = {"partitions": {QUEUE: 3}}
    viewer = Viewer(site.app)
    queues = viewer.app.state.site.queues
    viewer.open("/keys", name=QUEUE)
    viewer.press("Make fair")
    viewer.press("Make fair")
    assert fair.fair_states(site.store, [QUEUE, f"{QUEUE}#1", f"{QUEUE}#2"]) == ["on"] * 3
    send(site, *"aaaaaa")
    assert rows(viewer.open("/keys", name=QUEUE))["a"][0] == "6"
    question = "It has 3 partitions, and each limit counts in each of them."
    assert question in viewer.press("Limit", ["a"]).heading
    assert "Key a of celery: concurrency 2." in viewer.press("Limit", concurrency="2").text
    assert question in viewer.press("Limit each key").heading
    viewer.press("Limit each key", rate="1/s")
    assert "1/s, burst 1, in each of 3 partitions" in viewer.at.text
    assert queues.key_limits(QUEUE, "a").concurrency == 2
    viewer.close()


def test_read_only(viewer: Viewer, reader: Viewer, site: Site) -> None:
    send(site, "a")
    page = reader.open("/keys", name=QUEUE)
    assert "a" in rows(page)
    assert page.buttons == set()
    token = dict(viewer.open("/keys", name=QUEUE).forms[-1].fields)["redisdelay_token"]
    reader.client.cookies = viewer.client.cookies
    for action in ("fair", "plain", "limit-each-key", "pause-key", "resume-key", "limit-key"):
        pairs = [("redisdelay_token", token), ("choice", f"queue={QUEUE}"), ("action", action), ("id", "a ")]
        assert reader.send("/act", [*pairs, ("confirmed", "1"), ("rate", "1/s")]).status == 403
    queues = viewer.app.state.site.queues
    assert fair.fair_states(site.store, [QUEUE]) == [""]
    assert not queues.key_limits(QUEUE).is_limited
    assert queues.key_limits(QUEUE, "a").paused_since is None


def test_who_did_what_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kombu_redisdelay.web")
    viewer = Viewer(site.app, users={"ann": "secret"})
    viewer.client.auth = ("ann", "secret")
    send(site, "a", "b")
    viewer.open("/keys", name=QUEUE)
    viewer.press("Limit", ["a", "b"])
    viewer.press("Limit", rate="1/s")
    [record] = [record for record in caplog.records if record.name.startswith("kombu_redisdelay.web")]
    assert record.getMessage() == (
        "ann from testclient: limit-key rate=1/s queue=celery key=a key=b: 2 keys of celery: 1/s, burst 1. "
        "It counts when the queue is fair."
    )
    audit = vars(record)["audit"]
    assert (audit["action"], audit["keys"], audit["fields"]) == ("limit-key", ["a", "b"], {"rate": "1/s"})
    viewer.close()


#: Headers of foreign producers, as JSON has them, and the key that they are.
HOSTILE = {
    '"<script>alert(1)</script>"': "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>"': "><img src=x onerror=alert(1)>",
    '"\';{{ 7 * 7 }}&amp;/?#%2F+ =*[a]"': "';{{ 7 * 7 }}&amp;/?#%2F+ =*[a]",
    '"\u202eevil\u200b"': "\u202eevil\u200b",
    '"\\u202eevil"': "\u202eevil",
    '"a\\"b"': "",
    '"\\u0000\\u001b[31m"': "",
    '"\\ud800"': "",
    '"' + "\N{KEY}" * 17 + '"': "",
    "42": "",
    '{"a": 1}': "",
    "\udcff\udcc0": "",
}


def test_keys_of_foreign_producers(viewer: Viewer, site: Site) -> None:
    message = json.loads(payload(site, "id", "task"))
    message["headers"]["x-key"] = "KEY"
    text = json.dumps(message)
    site.text("fair", "-Q", QUEUE, "--force")
    with site.redis.client() as client:
        for header in HOSTILE:
            hostile = text.replace('"KEY"', header)
            client.lpush(QUEUE, hostile.encode(errors="surrogateescape"))
    before = known(viewer)
    check(viewer.at)
    sort_by_key(site)
    assert known(viewer) == before == set(HOSTILE.values())
    check(viewer.at)
    queues = viewer.app.state.site.queues
    for key in before - {""}:
        viewer.open("/keys", name=QUEUE)
        check(viewer.press("Pause", [key]))
        check(viewer.press("Pause"))
        assert queues.key_limits(QUEUE, key).paused_since is not None
    assert queues.key_limits(QUEUE, "").paused_since is None


def known(viewer: Viewer) -> set[str]:
    viewer.open("/keys", name=QUEUE)
    return {key.key for key in viewer.app.state.site.queues.keys(QUEUE).keys}
