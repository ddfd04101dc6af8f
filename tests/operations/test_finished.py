"""Finished tasks, above Redis: lists, pages, filters."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.operations.archive_reader import FOREIGN
from tests.finished import keep_finished
from tests.operations.kit import ids, in_each_state
from tests.transport.kit import Site


def finished(**chosen: Any) -> Selection:
    return Selection(state="finished", **chosen)


def test_they_are_told_only_where_they_are_asked_for(site: Site, app: Celery, messages: Messages) -> None:
    in_each_state(site, app)
    count = messages.count()
    keep_finished(messages.store, "celery", "ready", "done")
    assert messages.count() == count
    assert "done" not in ids(messages.select())
    assert messages.count(finished()) == 2
    # Also of one that is there, as it is when it was tried again.
    assert [each.state for each in messages.select(Selection(ids=["ready"]))] == ["ready", "finished"]
    done = messages.get("done")
    assert done is not None
    assert (done.state, done.outcome, done.waited, done.ran) == ("finished", "succeeded", 0.25, 1.5)
    assert (done.tries, done.worker, done.task, done.error) == (1, "celery@w", "shop.close", "")
    assert done.since is not None
    assert abs(done.since.timestamp() - time.time()) < 3600
    assert done.arguments() is None
    with pytest.raises(ValueError, match="state must be"):
        messages.remove(finished())


def test_filters(messages: Messages) -> None:
    keep_finished(messages.store, "celery", "a", ran=9.0)
    keep_finished(messages.store, "celery", "b", ran=90.0, task="shop.send", worker="celery@other")
    keep_finished(messages.store, "celery", "c", "c", ran=None, outcome="failed", error="KeyError")
    for chosen, found in (
        ({"slower": "10s"}, ["b"]),
        ({"slower": "1m30s"}, []),
        ({"outcome": "f*"}, ["c", "c"]),
        ({"error": "Key*"}, ["c", "c"]),
        ({"task": "shop.s*"}, ["b"]),
        ({"worker": "*other"}, ["b"]),
        ({"ids": ["c"]}, ["c", "c"]),
        ({"after": "1h", "slower": "1s"}, ["a", "b"]),
        ({"before": "1h"}, []),
        ({"key": "tenant"}, []),
        ({"related": "a"}, ["a"]),
    ):
        assert ids(messages.select(finished(**chosen))) == found, chosen
    assert messages.tally(finished(), by=["outcome", "error"])["failed", "KeyError"] == 2
    for text in ("soon", "", "-1s"):
        with pytest.raises(ValueError, match="not a length of time"):
            finished(slower=text)


def test_read_page_by_page_in_both_orders(messages: Messages) -> None:
    names = [f"{number:02}" for number in range(25)]
    keep_finished(messages.store, "celery", *names)
    for newest_first in (False, True):
        found: list[str] = []
        start = ""
        while start or not found:
            page = messages.page(finished(), start=start, newest_first=newest_first, size=7)
            found += ids(page.messages)
            start = page.next
        assert found == (names[::-1] if newest_first else names)


def test_lines_of_other_programs(site: Site, messages: Messages) -> None:
    lines = [
        b"",
        b"\xff\x1b[31m",
        b"1 - - 1 ok",
        b"9" * 400 + b" - - 1 ok - t w id",
        b"1 - - 1 ok - \xff \xff ",
    ]
    site.redis.lpush(site.keys("celery").finished, *lines)
    keep_finished(messages.store, "celery", "id with spaces\n\x1b", waited=None, ran=None)
    *foreign, odd, ours = messages.select(finished())
    assert {each.reason for each in foreign} == {FOREIGN}
    assert (len(foreign), {each.since for each in foreign}) == (4, {None})
    assert (odd.task, odd.worker, odd.id) == ("�", "�", "")
    assert (ours.id, ours.waited, ours.ran) == ("id with spaces\n\x1b", None, None)
    assert messages.count(finished(after="1h")) == 1
