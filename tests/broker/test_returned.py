"""Tasks that are known to have returned: kept among the failed ones, and told apart, also beside workers of
an older release."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import pytest

from kombu_redisdelay.broker import keeping as module
from kombu_redisdelay.broker.archive import BEGINNING, Archive, Kind, kind_of
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.failure import CONTINUATION, HOOK, LONGEST_NAME, RESULT, RETURNED
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.broker.known_queues import record
from kombu_redisdelay.broker.options import KeepFailed, Options
from kombu_redisdelay.broker.paging import REMOVE, REQUEUE, Part
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.operations.history import queue_history
from kombu_redisdelay.operations.stats import queue_stats
from tests.broker.older import OlderWorker
from tests.broker.rig import Rig, a_failure, payload, taken, trim_failed

KEEP = KeepFailed(10_000, 3_600_000, 10**9)


def end_all(rig: Rig, **each: str) -> None:
    """End tasks: their ids, and what was lost of each, empty for one that has failed."""
    end(rig.consumer(), rig, each)


def end(me: Consumer, rig: Rig, each: Mapping[str, str]) -> None:
    rig.put("q", *map(payload, each))
    for (id, lost), delivery in zip(each.items(), taken(me, "q"), strict=True):
        rig.database.tick()
        assert rig.fail(me, "q", delivery.tag, a_failure(id)._replace(returned=lost))


def ids(rig: Rig) -> list[str]:
    return [task.id for task in rig.failed("q")]


def figures(rig: Rig) -> tuple[int, int]:
    """How many have failed, and how many have returned."""
    [stats] = queue_stats(rig.store, ["q"])
    assert stats.messages == stats.ready + stats.failed + stats.returned
    return stats.failed, stats.returned


def groups(rig: Rig) -> dict[str, int]:
    """What was lost, and of how many."""
    return {group.returned: group.count for group in Archive(rig.store, FAILED).groups("q")}


def trim(rig: Rig, keep: KeepFailed = KEEP) -> None:
    finish(trim_failed(rig.store, keep, ["q"]))


class TestToldApart:
    @pytest.mark.parametrize("lost", RETURNED)
    def test_it_is_kept(self, rig: Rig, lost: str) -> None:
        end_all(rig, f="", r=lost)
        failed, returned = rig.failed("q")
        assert (failed.failure.returned, returned.failure.returned) == ("", lost)
        assert returned.failure == a_failure("r")._replace(returned=lost)
        assert figures(rig) == (1, 1)
        assert groups(rig) == {"": 1, lost: 1}
        tasks = Archive(rig.store, FAILED)
        assert (tasks.counts(["q"]), tasks.returned(["q", "none"])) == ([2], [1, 0])
        assert [task.id for task in tasks.iter("q", Part(None, None), returned=True)] == ["r"]
        at = returned.since_ms
        assert (tasks.returned(["q"], at), tasks.returned(["q"], None, at)) == ([1], [0])

    def test_the_history_counts_it_apart(self, rig: Rig) -> None:
        end_all(rig, a="", b=RESULT, c=HOOK, d=CONTINUATION)
        record(rig.store, ["q"])
        [history] = queue_history(rig.store, ["q"])
        assert (history.totals.failed, history.totals.returned, history.totals.continuations) == (1, 3, 1)

    def test_the_log_says_what_was_lost(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        end_all(rig, a=CONTINUATION, b=RESULT, c=HOOK)
        assert [each.levelno for each in caplog.records] == [logging.ERROR, logging.WARNING, logging.WARNING]
        assert all(f"tasks.fail[{id}]" in line for id, line in zip("abc", caplog.messages, strict=True))
        assert "what follows it was not sent" in caplog.messages[0]

    def test_the_oldest_go_whatever_they_are(self, rig: Rig) -> None:
        each = {"a": RESULT, "b": "", "c": HOOK, "d": "", "e": RESULT}
        end(rig.consumer(options=Options(keep_failed={"count": 3})), rig, each)
        assert ids(rig) == ["c", "d", "e"]
        assert figures(rig) == (1, 2)
        trim(rig, KeepFailed(1, 3_600_000, 10**9))
        assert (ids(rig), figures(rig)) == (["e"], (0, 1))

    @pytest.mark.parametrize("how", [REQUEUE, REMOVE])
    def test_it_is_taken_out(self, rig: Rig, how: str) -> None:
        end_all(rig, a=RESULT, b="", c=CONTINUATION)
        tasks = Archive(rig.store, FAILED)
        assert len(list(tasks.take_out("q", how, tasks.iter("q", Part(None, None), returned=True)))) == 2
        assert (ids(rig), figures(rig), groups(rig)) == (["b"], (1, 0), {"": 1})

    def test_all_are_removed_at_once_if_none_has_returned(self, rig: Rig) -> None:
        tasks = Archive(rig.store, FAILED)
        end_all(rig, a=RESULT, b="")
        assert (tasks.clear("q"), ids(rig)) == (None, ["a", "b"])
        list(tasks.take_out("q", REMOVE, tasks.iter("q", Part(None, None), returned=True)))
        assert (tasks.clear("q"), ids(rig)) == (1, [])

    def test_one_that_fails_later_has_failed(self, rig: Rig) -> None:
        end_all(rig, a=RESULT)
        list(Archive(rig.store, FAILED).take_out("q", REQUEUE, rig.failed("q")))
        [delivery] = taken(rig.consumer("you"), "q")
        rig.fail(rig.consumer("you"), "q", delivery.tag, a_failure("a"))
        assert (figures(rig), groups(rig)) == ((1, 0), {"": 1})

    def test_what_another_program_has_written_is_nothing(self, rig: Rig) -> None:
        end_all(rig, a="")
        head = rig.client.hget(rig.store.keys("q").failed_heads, "a")
        for said in (b'{"returned": "x"}', b'{"returned": 5}', b'{"text": "", "returned": ["result"]}'):
            rig.client.hset(rig.store.keys("q").failed_heads, "a", head.split(b"{")[0] + said)
            [task] = Archive(rig.store, FAILED).iter("q", Part(None, None))
            assert task.failure.returned == ""
            assert kind_of(task.head) == Kind("tasks.fail", "KeyError")
        rig.client.hset(rig.store.keys("q").failed_groups, "a b result", "no numbers")
        assert groups(rig) == {"": 1}


class TestTheBeginningOfAHead:
    """What was lost is known from it, whatever else is noted."""

    @pytest.mark.parametrize("lost", ["", *RETURNED])
    def test_it_tells(self, lost: str) -> None:
        failure = a_failure("1")._replace(returned=lost)
        assert json.loads(failure.details).get("returned", "") == lost
        for length in (*range(80, 200, 7), LONGEST_NAME):
            task, error = "t" * (length // 2), "e" * length
            head = f"1795244092945123 2 {task} {error} {'a' * 36} {failure.details}".encode()
            found = kind_of(head[:BEGINNING])
            assert found in (None, Kind(task, error, lost))
            assert kind_of(head) == Kind(task, error, lost)
            assert found is not None or length > 80


class TestBesideAnOlderRelease:
    """It finds these tasks among the failed ones, and leaves their names among those that have returned."""

    @pytest.fixture
    def older(self, rig: Rig) -> OlderWorker:
        return OlderWorker(rig, "q")

    def test_it_trims(self, rig: Rig, older: OlderWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        end_all(rig, a=RESULT, b="", c=HOOK, d="", e=RESULT)
        older.trim(KeepFailed(2, 3_600_000, 10**9))
        monkeypatch.setattr(module, "TRIMMED_PER_CALL", 1)
        trim(rig)
        assert (ids(rig), figures(rig), groups(rig)) == (["d", "e"], (1, 1), {"": 1, RESULT: 1})

    @pytest.mark.parametrize("how", [REQUEUE, REMOVE])
    def test_it_takes_out(self, rig: Rig, older: OlderWorker, how: str) -> None:
        """It also counts them where it would have counted their failures."""
        end_all(rig, a="", b=RESULT, c="", d=CONTINUATION)
        assert older.take_out(how, [rig.failed("q")[0], rig.failed("q")[1]]) == 2
        # What is listed is right at once, what is counted after the next maintenance.
        listed = Archive(rig.store, FAILED).iter("q", Part(None, None), returned=True)
        assert [task.id for task in listed] == ["d"]
        trim(rig)
        assert (ids(rig), figures(rig), groups(rig)) == (["c", "d"], (1, 1), {"": 1, CONTINUATION: 1})
        assert len(rig.ready("q")) == (2 if how == REQUEUE else 0)

    def test_one_that_it_has_requeued_fails(self, rig: Rig, older: OlderWorker) -> None:
        end_all(rig, a=RESULT, b=RESULT)
        older.take_out(REQUEUE, rig.failed("q"))
        for delivery, id in zip(taken(rig.consumer(), "q"), "ab", strict=True):
            rig.database.tick()
            rig.ack(rig.consumer(), "q", delivery.tag)
            older.fail(a_failure(id), payload(id), KEEP)
        trim(rig)
        assert (ids(rig), figures(rig), groups(rig)) == (["a", "b"], (2, 0), {"": 2})

    @pytest.mark.many_messages
    def test_many(self, rig: Rig, older: OlderWorker) -> None:
        """They are looked for in portions."""
        end_all(rig, **{f"t{number}": RESULT for number in range(60)})
        end_all(rig, **{f"u{number}": RESULT for number in range(60)})
        end_all(rig, **{f"v{number}": RESULT for number in range(60)}, last="")
        older.take_out(REMOVE, rig.failed("q")[::2])
        trim(rig)
        assert (figures(rig), groups(rig)) == ((0, 90), {RESULT: 90})
