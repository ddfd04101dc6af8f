"""Failed tasks, above Redis: lists, pages, requeueing."""

from __future__ import annotations

import json
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Event
from typing import Any

import pytest
from celery import Celery, chord, group

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker import archive as broker
from kombu_redisdelay.broker.failure import name
from kombu_redisdelay.broker.paging import FIRST_PAGE
from kombu_redisdelay.operations import pace, reading, verbs
from kombu_redisdelay.operations.acting import Done
from kombu_redisdelay.operations.changed import renewed
from kombu_redisdelay.operations.message import NONE, SHORTENED, with_arguments
from tests.failed import SECRET, keep_failed
from tests.operations.kit import ids, put
from tests.transport.kit import Site


def failed(**chosen: Any) -> Selection:
    return Selection(state="failed", **chosen)


def test_read_page_by_page_in_both_orders(site: Site, app: Celery, messages: Messages) -> None:
    names = [f"{number:02}" for number in range(25)]
    put(site, app, "failed", *names[:20])
    put(site, app, "failed", *names[20:], queue="other")
    for newest_first in (False, True):
        found: list[str] = []
        start = ""
        while start or not found:
            page = messages.page(failed(), start=start, newest_first=newest_first, size=7)
            found += ids(page.messages)
            start = page.next
        each = [names[:20], names[20:]]
        assert found == [id for some in each for id in (reversed(some) if newest_first else some)]
    moment = messages.get("10")
    assert moment is not None
    assert moment.since is not None
    assert ids(messages.select(failed(queue="celery", after=moment.since))) == names[10:20]
    assert messages.count(failed(queue="celery", before=moment.since)) == 10
    assert messages.count(failed(queue="celery", before=moment.since)).looked_at == 0


def test_what_may_be_hidden(site: Site, app: Celery, messages: Messages) -> None:
    put(site, app, "failed", "a")
    [message] = messages.select(failed())
    assert SECRET in with_arguments(message, SHORTENED).traceback
    assert SECRET not in str(with_arguments(message, NONE))
    assert (with_arguments(message, NONE).text, with_arguments(message, NONE).traceback) == ("(…)", "")


def test_several_with_one_id(site: Site, app: Celery, messages: Messages) -> None:
    put(site, app, "failed", "a", "a", "b")
    put(site, app, "dead", "a")
    assert messages.requeue(failed(ids=["a"])).by_id == {"a": 2}
    assert messages.remove(ids=["a", "b"]).by_id == {"a": 1, "b": 1}
    assert (messages.count(failed()), site.ready("celery")) == (0, 2)


def test_what_fails_again_meanwhile_is_not_requeued_again(
    site: Site, app: Celery, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "TASKS_PER_CALL", 1)
    # More than are read at first.
    count = FIRST_PAGE + 2
    put(site, app, "failed", *map(str, range(count)))

    def renewed_and_failed_again(payload: bytes) -> bytes:
        while again := site.redis.rpop("celery"):
            keep_failed(messages.store, "celery", json.loads(again)["headers"]["id"], again)
        return renewed(payload)

    monkeypatch.setattr(verbs, "renewed", renewed_and_failed_again)
    assert messages.requeue(failed(), limit=50).count == count
    # The last one is not taken from its queue again.
    assert messages.count(failed()) == count - 1


def test_one_that_was_kept_without_its_message(messages: Messages) -> None:
    text = json.dumps({"body": "x" * 2**20, "headers": {"task": "t", "id": "a"}, "properties": {}})
    keep_failed(messages.store, "q", "a", text)
    [message] = messages.select(failed(task="shop.*"))
    assert (message.id, message.task, message.size) == ("a", "shop.close", 0)
    assert message.reason == "KeyError, kept without its message, which is too large, or lost"
    for done in (messages.requeue(ids=["a"]), messages.requeue(ids=["a"], dry_run=True)):
        assert (done.by_id, done.without_message) == ({"a": 0}, 1)
    for done in (messages.requeue(failed()), messages.requeue(failed(), dry_run=True)):
        assert (done.count, done.without_message) == (0, 1)
    assert messages.remove(ids=["a"]).by_id == {"a": 1}


def test_by_task_and_error(messages: Messages) -> None:
    kinds = [("a", "KeyError", "q"), ("a", "KeyError", "other"), ("b", "OSError", "q"), ("b", "OSError", "q")]
    text = {"body": "", "properties": {}}
    for number, (task, error, queue) in enumerate([*kinds, ("a", "KeyError", "q")]):
        payload = json.dumps({**text, "headers": {"task": task, "id": str(number)}})
        keep_failed(messages.store, queue, str(number), payload, task, error=error)
    moments = [message.since for message in messages.select(failed(task="a"))]
    for selection in (None, failed(), failed(after="1h")):
        one, other = messages.failures(selection)
        assert (one.task, one.error, one.count) == ("a", "KeyError", 3)
        assert (other.task, other.error, other.count) == ("b", "OSError", 2)
        if selection is not None and selection.has_times:
            assert (one.first, one.last) == (min(filter(None, moments)), max(filter(None, moments)))
    assert [group.count for group in messages.failures(failed(queue="other"))] == [1]
    assert [group.task for group in messages.failures(failed(error="OS*"))] == ["b"]
    with pytest.raises(ValueError, match="state must be one of failed, dead"):
        messages.failures(Selection(state="ready"))


class TestRenewed:
    """What a requeued task is."""

    def test_as_if_it_had_never_been_tried(self, site: Site, app: Celery, messages: Messages) -> None:
        put(
            *(site, app, "failed", "a"),
            expires=3600,
            retries=3,
            root_id="root",
            parent_id="parent",
            headers={"customer": "Ada", "x-delivery-count": 2, "redelivered": True},
        )
        [before] = messages.select(failed())
        assert (before.headers["retries"], bool(before.headers["expires"])) == (3, True)
        assert messages.requeue(failed()).count == 1
        [after] = messages.select(Selection(state="ready"))
        of_try = {"retries": 0, "expires": None, "x-delivery-count": None, "redelivered": None}
        assert {name: after.headers.get(name) for name in of_try} == of_try
        others = before.headers.keys() - of_try.keys()
        assert {name: after.headers[name] for name in others} == {
            name: before.headers[name] for name in others
        }
        assert (after.failures, after.arguments()) == (0, before.arguments())

    def test_a_part_of_a_chord_leaves_its_group(self, site: Site, app: Celery) -> None:
        @app.task(name="part")
        def task() -> None:
            """A part, and the body."""

        body = task.si()
        cases = {
            True: chord([task.si(), task.si()], body),
            False: group(task.si(), task.si()),
        }
        for leaves, workflow in cases.items():
            workflow.apply_async()
            payload = site.redis.rpop("celery")
            assert json.loads(payload)["headers"]["group"]
            headers = json.loads(renewed(payload))["headers"]
            assert (headers["group"] is None, headers["group_index"] is None) == (leaves, leaves)
            site.redis.delete("celery")

    def test_what_cannot_be_read(self) -> None:
        for foreign in (b"\xff", b"[]", b"{}", b"[" * 100_000):
            assert renewed(foreign) == foreign

        def message(body: str, **properties: Any) -> bytes:
            headers = {"task": "t", "group": "g", "retries": 2}
            return json.dumps({"body": body, "headers": headers, "properties": properties}).encode()

        pickled = b64encode(b"\x80\x04]").decode()
        for body in (
            message(pickled, body_encoding="base64"),
            message("?"),
            message("[]"),
            message("[1,2,3]"),
        ):
            headers = json.loads(renewed(body))["headers"]
            assert (headers["group"], headers["retries"]) == (None, 0)


class TestRequeueSlowly:
    """At a rate, while some fail again."""

    @pytest.mark.parametrize("same_id", [False, True])
    def test_it_stops_when_too_many_fail_again(
        self, site: Site, app: Celery, messages: Messages, same_id: bool
    ) -> None:
        names = ["same" if same_id else f"{number:02}" for number in range(40)]
        put(site, app, "failed", *names)

        def fail_again(count: int) -> None:
            while payload := site.redis.rpop("celery"):
                keep_failed(messages.store, "celery", json.loads(payload)["headers"]["id"], payload)

        done = messages.requeue(failed(), rate="10/s", progress=fail_again)
        assert (done.stopped, bool(done.left)) == ("failing", True)
        assert (done.count + (done.left or 0), 10 <= done.failed_again <= done.count) == (40, True)
        # Those that failed again are the newest ones, and were sent once.
        assert messages.count(failed()) == 40

    def test_another_thread_stops_it(self, site: Site, app: Celery, messages: Messages) -> None:
        put(site, app, "failed", "a", "b", "c")
        stop = Event()

        def told(count: int) -> None:
            if count:
                stop.set()

        done = messages.requeue(failed(), rate="1/m", stop=stop, progress=told)
        assert (done.count, done.left, done.stopped, done.failed_again) == (1, 2, "asked", 0)
        done = messages.requeue(failed(), rate=1000, limit=1)
        # What is above the limit is left, too.
        assert (done.count, done.left, done.stopped, done.waiting) == (1, 1, "", 1)
        assert ids(messages.select(Selection(state="ready"))) == ["a", "b"]

    def test_two_at_once(self, site: Site, app: Celery, messages: Messages) -> None:
        """Each task goes back once, and whoever has sent it counts it."""
        names = [f"{number:02}" for number in range(60)]
        put(site, app, "failed", *names)
        both = Barrier(2)

        def requeue() -> Done:
            with Messages(app) as mine:
                both.wait()
                return mine.requeue(failed(), rate="200/s")

        with ThreadPoolExecutor(2) as threads:
            first, second = (each.result() for each in [threads.submit(requeue) for _ in range(2)])
        assert first.count + second.count == 60
        assert (first.left, second.left, first.stopped, second.stopped) == (0, 0, "", "")
        assert sorted(ids(messages.select(Selection(state="ready")))) == names

    def test_one_that_another_one_has_sent_and_that_has_failed_again(
        self, site: Site, app: Celery, messages: Messages
    ) -> None:
        put(site, app, "failed", *(f"{number:02}" for number in range(12)))
        by_another: list[Done] = []

        def another_one(count: int) -> None:
            if count and not by_another:
                by_another.append(messages.requeue(failed()))
                while payload := site.redis.rpop("celery"):
                    keep_failed(messages.store, "celery", json.loads(payload)["headers"]["id"], payload)

        done = messages.requeue(failed(), rate="3/s", progress=another_one)
        # It has read those that the other one has sent, and does not send them once more.
        assert done.count + by_another[0].count == 12
        assert (done.failed_again, done.left, done.stopped) == (done.count, 0, "")
        assert messages.count(failed()) == 12

    def test_what_makes_no_sense(self, messages: Messages) -> None:
        for rate in ("fast", 0, "10/d"):
            with pytest.raises(ValueError, match="a rate is"):
                messages.requeue(failed(), rate=rate)
        with pytest.raises(ValueError, match="state must be failed"):
            messages.requeue(Selection(state="dead"), rate=1)
        with pytest.raises(ValueError, match="which state"):
            messages.requeue(Selection(every=True), rate=1)


@pytest.mark.parametrize(
    ("have_failed", "are_failing"),
    [
        ("x" * 9, False),
        ("x" * 10, True),
        ("x" * 5 + "." * 4 + "x", True),
        ("x" * 4 + "." * 5 + "x", False),
        # It is too early to tell what becomes of the others.
        ("x" * 10 + "." * 50, True),
        ("x" * 10 + "." * 50 + "x", False),
        # What went well before a service broke does not count for long.
        ("." * 400 + "x" * 10, False),
        ("." * 400 + "x" * 11, True),
    ],
)
def test_when_it_stops(have_failed: str, are_failing: bool) -> None:
    assert pace.are_failing(each == "x" for each in have_failed) is are_failing


class TestBriefly:
    """By task and error, most failed tasks are not read whole."""

    def kept(self, messages: Messages, *kinds: tuple[str, str]) -> None:
        for number, (task, error) in enumerate(kinds):
            headers = {"task": task, "id": str(number)}
            payload = json.dumps({"body": "", "headers": headers, "properties": {}})
            keep_failed(messages.store, "q", str(number), payload, name(task), error=error)

    def test_only_those_that_match_are_read(self, site: Site, messages: Messages) -> None:
        self.kept(
            messages, *[("shop.close", "KeyError")] * 300, ("mail.send", "OSError"), ("mail.a", "KeyError")
        )
        key = site.keys("q").archive("failed").messages
        for selection, found in (
            (failed(error="OS*"), ["300"]),
            (failed(task="mail.*"), ["300", "301"]),
            (failed(task="mail.*", error="KeyError"), ["301"]),
            (failed(error="None"), []),
        ):
            before = messages.count(selection)
            assert (before, before.looked_at, before.is_exact) == (len(found), 302, True)
            assert ids(messages.select(selection)) == found
            for newest_first in (False, True):
                page = messages.page(selection, newest_first=newest_first)
                assert (sorted(ids(page.messages)), page.next) == (found, "")
            assert messages.requeue(selection, dry_run=True).count == len(found)
            assert sum(group.count for group in messages.failures(selection)) == len(found)
        assert messages.count(failed(error="OS*"), at_most=10).is_exact is False
        site.redis.hset(key, "0", "0:garbage")
        assert messages.count(failed(task="shop.close")) == 300
        assert messages.count(failed(error="KeyError")) == 301
        assert messages.remove(failed(error="OS*")).count == 1
        assert ids(messages.select(failed(error="OS*"))) == []
        # To count, no message is read.
        site.redis.delete(key)
        assert messages.count(failed(error="KeyError")) == 301

    def test_a_page_goes_on_where_nothing_matched(
        self, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.kept(messages, *[("a", "KeyError")] * 60, ("b", "OSError"))
        monkeypatch.setattr(reading, "LOOKS_FOR", 0)
        page = messages.page(failed(error="OSError"))
        pages = [page]
        while page.next:
            page = messages.page(failed(error="OSError"), start=page.next)
            pages.append(page)
        assert [ids(each.messages) for each in pages][-1] == ["60"]
        assert sum(each.looked_at for each in pages) == 61

    def test_names_that_are_noted_otherwise(self, messages: Messages) -> None:
        long = "x" * 300
        kinds = [("with space", "E"), ("esc\x1b", "E"), (long, "E"), ("", "e" * 300)]
        self.kept(messages, *kinds)
        for number, pattern in enumerate(("with space", "esc\x1b", long, "*")):
            assert str(number) in ids(messages.select(failed(task=pattern))), pattern
        for pattern in ("with?space", "with[ ]space", "with*space"):
            assert ids(messages.select(failed(task=pattern))) == ["0"]
        # So is its group called.
        assert ids(messages.select(failed(task="withspace"))) == ["0"]
        assert messages.count(failed(error="e*")) == 1

    def test_a_message_that_does_not_say_its_task(self, messages: Messages) -> None:
        """Version 1 of Celery's protocol has it in the body; and another message may say another one."""
        for id, headers in (("a", {}), ("b", {"task": "other", "id": "b"})):
            payload = json.dumps({"body": "", "headers": headers, "properties": {"correlation_id": id}})
            keep_failed(messages.store, "q", id, payload)
        ours = failed(task="shop.close")
        assert [(each.id, each.task) for each in messages.select(ours)] == [(id, "shop.close") for id in "ab"]
        assert [group.task for group in messages.failures(failed(task="*"))] == ["shop.close"]
        for selection, count in ((ours, 2), (failed(task="other"), 0)):
            assert messages.count(selection) == count
            assert sum(group.count for group in messages.failures(selection)) == count
            # Looked at one by one, for another filter.
            also = replace(selection, worker="celery@w")
            assert messages.count(also) == count
            assert messages.requeue(also, dry_run=True).count == count
            assert messages.requeue(also).count == count

    def test_heads_that_are_none(self, site: Site, messages: Messages) -> None:
        self.kept(messages, *[("a", "KeyError")] * 3)
        heads = site.keys("q").failed_heads
        site.redis.hset(heads, "0", b"\xff garbage")
        site.redis.hset(heads, "1", "1 2 a KeyError")
        assert ids(messages.select(failed(error="KeyError"))) == ["2"]
        assert ids(messages.select(failed(error="-"))) == ["0", "1"]
        assert messages.count(failed(error="*")) == 3
