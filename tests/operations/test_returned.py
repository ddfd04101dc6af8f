"""Failed tasks that are known to have returned, above Redis: told apart, and left alone unless they are asked
for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.failure import CONTINUATION, HOOK, RESULT
from kombu_redisdelay.operations.failed_tasks import unattended
from kombu_redisdelay.operations.life import life
from kombu_redisdelay.operations.reading import Count
from tests.failed import keep_failed
from tests.operations.kit import ids, put, send
from tests.transport.kit import Site

#: Id -> what was lost.
EACH = {"f1": "", "r1": RESULT, "c1": CONTINUATION, "f2": "", "h1": HOOK, "r2": RESULT}
FAILED = ["f1", "f2"]
RETURNED = ["r1", "c1", "h1", "r2"]


def failed(**chosen: Any) -> Selection:
    return Selection(state="failed", **chosen)


@pytest.fixture(autouse=True)
def _kept(site: Site, app: Celery, messages: Messages) -> None:
    for id, lost in EACH.items():
        send(app, id)
        error = "ConnectionError" if lost else "KeyError"
        payload = site.redis.rpop("celery")
        keep_failed(messages.store, "celery", id, payload, returned=lost, error=error)


def left(messages: Messages) -> list[str]:
    return ids(messages.select(failed()))


class TestLooking:
    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("*", RETURNED),
            ("result", ["r1", "r2"]),
            ("[ch]*", ["c1", "h1"]),
            ('""', FAILED),
        ],
    )
    def test_the_filter(self, messages: Messages, pattern: str, expected: list[str]) -> None:
        selection = failed(returned=pattern)
        assert ids(messages.select(selection)) == expected
        assert messages.count(selection) == len(expected)
        assert ids(messages.page(selection, size=1).messages) == expected[:1]
        assert ids(messages.page(selection, newest_first=True).messages) == expected[::-1]
        # Only failed tasks can match.
        assert ids(messages.select(Selection(returned=pattern))) == expected

    def test_with_others(self, messages: Messages) -> None:
        assert ids(messages.select(failed(returned="*", error="Key*"))) == []
        assert ids(messages.select(failed(returned="*", error="Conn*", task="shop.close"))) == RETURNED
        [message] = messages.select(Selection(ids=["c1"]))
        assert message.returned == CONTINUATION
        assert ids(messages.select(failed(returned="*", after=message.since))) == RETURNED[1:]

    def test_only_these_are_read(self, messages: Messages) -> None:
        counted = messages.count(failed(returned="*"))
        assert isinstance(counted, Count)
        assert counted.looked_at == len(RETURNED)

    @pytest.mark.parametrize("pattern", ["", "lost", "Result", "x*"])
    def test_what_matches_nothing_is_refused(self, pattern: str) -> None:
        with pytest.raises(ValueError, match="returned must be one of continuation, result, hook"):
            failed(returned=pattern)

    def test_groups(self, messages: Messages) -> None:
        for selection in (failed(), failed(after="1h")):
            groups = {(group.error, group.returned): group.count for group in messages.failures(selection)}
            assert groups == {
                ("KeyError", ""): 2,
                ("ConnectionError", RESULT): 2,
                ("ConnectionError", CONTINUATION): 1,
                ("ConnectionError", HOOK): 1,
            }

    def test_their_lives(self, messages: Messages) -> None:
        [message] = messages.select(Selection(ids=["r1"]))
        assert life(message)[-1]._replace(at=None) == (
            *("returned", None, "and its result was lost, with ConnectionError, try 2"),
        )


class TestActing:
    """None of them is requeued or removed, unless it is asked for."""

    @pytest.mark.parametrize("verb", ["requeue", "remove"])
    @pytest.mark.parametrize("chosen", [{}, {"task": "shop.*"}, {"after": "1h"}, {"queue": "celery"}])
    def test_they_stay(self, messages: Messages, site: Site, verb: str, chosen: dict[str, Any]) -> None:
        act = getattr(messages, verb)
        for options in ({"dry_run": True}, {}):
            done = act(failed(**chosen), **options)
            assert (done.count, done.returned, done.run_again) == (2, 4, 0)
        assert left(messages) == RETURNED
        assert site.ready("celery") == (2 if verb == "requeue" else 0)
        # Some of them match the other filters.
        assert act(failed(error="Conn*")).returned == 4
        assert act(failed(error="Key*")).returned == 0

    @pytest.mark.parametrize("verb", ["requeue", "remove"])
    def test_they_are_asked_for(self, messages: Messages, verb: str) -> None:
        act = getattr(messages, verb)
        again = verb == "requeue"
        for options in ({"dry_run": True}, {}):
            done = act(failed(returned="result"), **options)
            assert (done.count, done.returned, done.run_again) == (2, 0, 2 * again)
        for options in ({"dry_run": True}, {}):
            done = act(ids=["c1", "f1"], **options)
            assert (done.count, done.returned, done.run_again) == (2, 0, again)
        assert left(messages) == ["f2", "h1"]
        assert act(failed(returned="*")).count == 1
        assert act(failed()).returned == 0

    def test_of_two_states(self, messages: Messages, app: Celery, site: Site) -> None:
        put(site, app, "dead", "d1")
        done = messages.remove(Selection(state=["failed", "dead"]))
        assert (done.count, done.returned, left(messages)) == (3, 4, RETURNED)
        assert messages.count(Selection(state="dead")) == 0

    def test_all_are_removed_at_once_where_none_has_returned(
        self, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        messages.remove(failed(returned="*"))
        monkeypatch.setattr(Archive, "take_out", None)
        assert messages.remove(failed()).count == 2
        assert left(messages) == []

    def test_up_to_a_limit(self, messages: Messages) -> None:
        done = messages.requeue(failed(), limit=1)
        assert (done.count, done.returned) == (1, 4)
        assert left(messages) == ["r1", "c1", "f2", "h1", "r2"]


class TestSlowly:
    def test_they_stay(self, messages: Messages) -> None:
        done = messages.requeue(failed(), rate="1000/s")
        assert (done.count, done.returned, done.left, left(messages)) == (2, 4, 0, RETURNED)

    @pytest.mark.parametrize(("lost", "failed_again"), [(RESULT, 0), ("", 4)])
    def test_one_whose_result_is_lost_again_has_not_failed_again(
        self, messages: Messages, site: Site, lost: str, failed_again: int
    ) -> None:
        def run(count: int) -> None:
            while (payload := site.redis.rpop("celery")) is not None:
                id = json.loads(payload)["headers"]["id"]
                keep_failed(messages.store, "celery", id, payload, returned=lost)

        done = messages.requeue(failed(returned="*"), rate="1000/s", progress=run)
        assert (done.count, done.run_again, done.failed_again) == (4, 4, failed_again)

    def test_no_worker_is_missed_for_them(self, messages: Messages) -> None:
        assert unattended(messages, failed()) == ["celery"]
        messages.remove(failed())
        assert unattended(messages, failed()) == []
        assert unattended(messages, failed(returned="*")) == ["celery"]
