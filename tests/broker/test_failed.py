"""Failed tasks: what is kept of them, and how much."""

from __future__ import annotations

import json
import logging
from collections import Counter

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker import archive
from kombu_redisdelay.broker import keeping as module
from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.failure import (
    LONGEST_NAME,
    LONGEST_TEXT,
    LONGEST_TRACEBACK,
    MOST_TRIES,
    RESULT,
    name,
    shortened_traceback,
    text_of,
    tries_after,
)
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.broker.limits import LimitStore
from kombu_redisdelay.broker.options import KeepFailed, Options
from kombu_redisdelay.broker.paging import REMOVE, REQUEUE, Part
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.broker.unique import DONE, UniqueKey
from tests.broker.rig import Rig, a_failure, line_of, payload, taken, texts, trim_failed, with_count

HOUR = 3_600_000


def keeping(**limits: float) -> Options:
    return Options(delivery_limit=None, retry_wait=0, keep_failed=limits)


def ids(rig: Rig, queue: str = "q") -> list[str]:
    return [task.id for task in rig.failed(queue)]


def fail_all(rig: Rig, *each: str, options: Options | None = None) -> None:
    me = rig.consumer(options=options)
    rig.put("q", *(payload(id) for id in each))
    for id, delivery in zip(each, taken(me, "q"), strict=True):
        rig.database.tick()
        assert rig.fail(me, "q", delivery.tag, a_failure(id))


class TestWhatIsKept:
    def test_all_that_is_noted(self, rig: Rig) -> None:
        rig.put("q", with_count(payload("1"), 2), step=3)
        me = rig.consumer()
        [delivery] = taken(me, "q")
        assert rig.fail(me, "q", delivery.tag, a_failure("1"))
        [task] = rig.failed("q")
        assert task.failure == a_failure("1")
        assert (task.failures, task.stored.decode()) == (2, f"3:{with_count(payload('1'), 2)}")
        assert abs(task.since_ms - rig.database.now_ms()) < HOUR
        assert rig.unacked("q") == {}

    def test_what_is_not_held_is_left_alone(self, rig: Rig) -> None:
        me = rig.consumer()
        rig.put("q", payload("1"))
        [delivery] = taken(me, "q")
        me.requeue("q", delivery.tag)
        assert not rig.fail(me, "q", delivery.tag, a_failure("1"))
        assert (rig.failed("q"), len(rig.ready("q"))) == ([], 1)

    def test_a_copy_is_written_once(self, rig: Rig) -> None:
        me, text = rig.consumer(), f"3:{payload('1')}"
        for _ in range(2):
            assert rig.fail(me, "q", "7", a_failure("1"), copy=text)
        assert [task.stored.decode() for task in rig.failed("q")] == [text]
        # Another message with this id is kept beside it.
        for _ in range(2):
            rig.fail(me, "q", "8", a_failure("1"), copy=text)
        assert [task.name for task in rig.failed("q")] == [b"1", b"1\x1f8"]
        found = Archive(rig.store, FAILED).find_all(["other", "q"], ["2", "1"])
        assert [task.name for task in found] == [b"1", b"1\x1f8"]

    def test_a_copy_is_written_once_also_if_the_one_that_had_its_id_is_dropped_for_it(self, rig: Rig) -> None:
        me, text = rig.consumer(options=Options(keep_failed={"count": 2})), f"3:{payload('1')}"
        for id, tag in (("1", "7"), ("2", "8"), ("1", "9"), ("1", "9")):
            rig.database.tick()
            rig.fail(me, "q", tag, a_failure(id), copy=text)
        assert {task.name for task in rig.failed("q")} == {b"2", b"1\x1f9"}

    def test_a_copy_is_not_sent_again_after_it_was_confirmed(self, rig: Rig) -> None:
        me = rig.consumer()
        rig.put("q", payload("held"))
        [delivery] = taken(me, "q")
        rig.fail(me, "q", delivery.tag, a_failure("held"))
        rig.fail(me, "q", "7", a_failure("copy"), copy=f"0:{payload('copy')}")
        tasks = Archive(rig.store, FAILED)
        assert len(list(tasks.take_out("q", REMOVE, rig.failed("q")))) == 2
        # What was confirmed lately is sent again over a new connection.
        line_of(me, "q").disconnect()
        me.confirm_acks()
        assert rig.failed("q") == []

    def test_a_large_message_is_kept_without_its_text(self, rig: Rig) -> None:
        me = rig.consumer()
        rig.put("q", payload("1", body="x" * 1024 * 1024))
        [delivery] = taken(me, "q")
        rig.fail(me, "q", delivery.tag, a_failure("1"))
        [task] = rig.failed("q")
        assert (task.stored, task.is_whole, task.failure) == (b"", False, a_failure("1"))
        tasks = Archive(rig.store, FAILED)
        assert list(tasks.take_out("q", REQUEUE, [task])) == []
        assert list(tasks.take_out("q", REMOVE, [task])) == [task]

    def test_foreign_bytes_are_no_failure(self, rig: Rig) -> None:
        fail_all(rig, "1")
        heads = [b"", b"what?", b"1 2 a b c not JSON", b"1 2 a b c []", b"1 2 a b c [" * 10_000]
        heads += [b'1 2 a b c {"started": %b}' % number for number in (b"9" * 400, b"1e300", b"NaN", b"-1")]
        for head in heads:
            rig.client.hset(rig.store.keys("q").failed_heads, "1", head)
            [task] = Archive(rig.store, FAILED).iter("q", Part(None, None))
            assert (task.failure.text, task.failure.tries, task.id) == ("", 0, "1")
            assert task.failure.started is None

    def test_one_without_a_head_can_be_removed(self, rig: Rig) -> None:
        fail_all(rig, "1")
        rig.client.hdel(rig.store.keys("q").failed_heads, "1")
        tasks = Archive(rig.store, FAILED)
        assert len(list(tasks.take_out("q", REMOVE, tasks.iter("q", Part(None, None))))) == 1
        assert tasks.counts(["q"]) == [0]

    def test_what_another_program_has_put_there_does_not_stop_the_ack(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig.client.set(rig.key("q", "failed:heads"), "foreign")
        me = rig.consumer()
        rig.put("q", payload("1"))
        [delivery] = taken(me, "q")
        assert rig.fail(me, "q", delivery.tag, a_failure("1"))
        assert rig.unacked("q") == {}
        [record] = caplog.records
        assert (record.levelno, "tasks.fail[1]" in record.getMessage()) == (logging.ERROR, True)
        finish(trim_failed(rig.store, Options().kept_failed, ["q"]))

    @pytest.mark.parametrize("key", ["failed:heads", "failed:messages", "failed:groups", "failed:duplicates"])
    @pytest.mark.parametrize("how", [REQUEUE, REMOVE])
    def test_what_another_program_has_put_there_loses_none(self, rig: Rig, key: str, how: str) -> None:
        fail_all(rig, "1")
        tasks, found = Archive(rig.store, FAILED), rig.failed("q")
        saved = rig.client.dump(rig.key("q", key))
        rig.client.set(rig.key("q", key), "foreign")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            list(tasks.take_out("q", how, found))
        rig.client.delete(rig.key("q", key))
        if saved:
            rig.client.restore(rig.key("q", key), 0, saved)
        assert (rig.failed("q"), rig.ready("q")) == (found, [])


class TestAsAnAck:
    def test_it_frees_its_key(self, rig: Rig) -> None:
        me, unique = rig.consumer(), UniqueKey("k", DONE)
        rig.publish_unique("q", "1", unique)
        [delivery] = taken(me, "q")
        conflict = rig.publish_unique("q", "2", unique)
        assert conflict is not None
        assert conflict.holder == "1"
        rig.fail(me, "q", delivery.tag, a_failure("1"))
        assert rig.publish_unique("q", "2", unique) is None
        # The other one has the key now, so this one stays.
        stays: list[tuple[str, str]] = []
        tasks = Archive(rig.store, FAILED)
        requeued = tasks.take_out(
            "q", REQUEUE, rig.failed("q"), stays=lambda task, holder: stays.append((task.id, holder))
        )
        assert (list(requeued), stays, ids(rig)) == ([], [("1", "2")], ["1"])
        [delivery] = taken(me, "q")
        rig.ack(me, "q", delivery.tag)
        assert len(list(tasks.take_out("q", REQUEUE, rig.failed("q")))) == 1
        conflict = rig.publish_unique("q", "3", unique)
        assert conflict is not None
        assert conflict.holder == "1"

    def test_it_leaves_room_in_a_limited_queue(self, rig: Rig) -> None:
        LimitStore(rig.store).limit(["q"], {"concurrency": 1})
        rig.put("q", payload("1"), payload("2"))
        me = rig.consumer()
        [delivery] = taken(me, "q")
        rig.use_up_token("q")
        rig.fail(me, "q", delivery.tag, a_failure("1"))
        assert rig.tokens("q") == 1
        assert len(taken(me, "q")) == 1


class TestHowMuch:
    def test_the_oldest_go_when_there_are_too_many(self, rig: Rig) -> None:
        fail_all(rig, "1", "2", "3", "4", options=keeping(count=2))
        assert ids(rig) == ["3", "4"]

    def test_the_oldest_go_when_they_are_too_large(self, rig: Rig) -> None:
        fail_all(rig, "1")
        size = len(rig.failed("q")[0].head) + len(rig.failed("q")[0].stored)
        fail_all(rig, "2", "3", options=keeping(bytes=2 * size + size // 2))
        assert ids(rig) == ["2", "3"]

    def test_maintenance_drops_what_is_too_old(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "TRIMMED_PER_CALL", 2)
        fail_all(rig, "1", "2", "3", "4", "5")
        rig.database.advance(HOUR)
        fail_all(rig, "6", options=keeping(age=2 * HOUR / 1000))
        finish(trim_failed(rig.store, None, ["q"]))
        assert len(ids(rig)) == 6
        finish(trim_failed(rig.store, KeepFailed(10, HOUR // 2, 10**9), ["nothing", "q"]))
        assert ids(rig) == ["6"]

    def test_what_is_left_of_a_larger_limit_goes_bit_by_bit(self, rig: Rig) -> None:
        fail_all(rig, *map(str, range(60)))
        fail_all(rig, *map(str, range(60, 120)))
        fail_all(rig, "more", options=keeping(count=5))
        assert len(ids(rig)) == 21

    def test_bytes_that_are_no_number_drop_none(self, rig: Rig) -> None:
        fail_all(rig, "1")
        rig.client.hset(rig.key("q", "failed:groups"), "", "nan")
        fail_all(rig, "2")
        assert Archive(rig.store, FAILED).counts(["q"]) == [2]

    def test_what_is_dropped_for_the_bounds_is_counted(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        history = rig.store.keys("q").history
        fail_all(rig, *map(str, range(40)))
        fail_all(rig, "40", options=keeping(count=36))
        assert rig.client.hget(history, "failed_dropped") == b"5"
        # Too few to tell of.
        finish(trim_failed(rig.store, KeepFailed(36, HOUR, 10**9), ["q"]))
        assert caplog.messages == []
        for count in (26, 12):
            # The second time, it was told of a moment ago.
            finish(trim_failed(rig.store, KeepFailed(count, HOUR, 10**9), ["q"]))
            [line] = caplog.messages
            assert line.startswith("Dropped 15 failed task(s) of queue 'q', the oldest first")
        assert rig.client.hget(history, "failed_dropped") == b"29"
        told = rig.client.hget(history, "drops_told").split()
        rig.client.hset(history, "drops_told", b"%d %d" % (int(told[0]), int(told[1]) - 601))
        finish(trim_failed(rig.store, KeepFailed(12, HOUR, 10**9), ["q"]))
        assert [line.split()[1] for line in caplog.messages] == ["15", "14"]

    def test_what_is_too_old_is_no_loss(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        fail_all(rig, *map(str, range(20)))
        rig.database.advance(HOUR)
        finish(trim_failed(rig.store, KeepFailed(10, HOUR // 2, 10**9), ["q"]))
        assert ids(rig) == []
        assert rig.client.hget(rig.store.keys("q").history, "failed_dropped") is None
        assert caplog.messages == []

    @pytest.mark.parametrize("foreign", ["x", "", "-1 -1", "9" * 5000, "1e309 nan"])
    def test_what_another_program_has_written_of_it_counts_as_nothing(self, rig: Rig, foreign: str) -> None:
        fail_all(rig, *map(str, range(20)))
        for field in ("failed_dropped", "drops_told"):
            rig.client.hset(rig.store.keys("q").history, field, foreign)
        finish(trim_failed(rig.store, KeepFailed(5, HOUR, 10**9), ["q"]))
        assert len(ids(rig)) == 5

    def test_of_different_limits_the_smallest_hold(self, rig: Rig) -> None:
        """Each consumer drops what is too much by its own: docs/failed.rst says so."""
        fail_all(rig, "1", "2", options=keeping(age=2 * HOUR / 1000))
        fail_all(rig, "3", options=keeping(age=HOUR / 1000))
        key = rig.store.keys("q").failed
        # All of them are as old, at the most, when their keys expire.
        assert rig.client.pttl(key) <= HOUR
        fail_all(rig, "4", options=keeping(age=2 * HOUR / 1000))
        assert HOUR < rig.client.pttl(key) <= 2 * HOUR
        rig.database.advance(HOUR)
        fail_all(rig, "5", options=keeping(age=HOUR / 1000))
        assert ids(rig) == ["5"]

    def test_all_of_it_has_a_time_to_live(self, rig: Rig) -> None:
        fail_all(rig, "1", options=keeping(age=60))
        me = rig.consumer(options=keeping(age=60))
        failure = a_failure("1")._replace(returned=RESULT)
        rig.fail(me, "q", "7", failure, copy=f"0:{payload('1')}")
        for key in rig.store.keys("q").archive(FAILED):
            assert 0 < rig.client.pttl(key) <= 60_000


class TestAPartIsGone:
    """Redis may evict each key alone."""

    EACH = ("failed", "failed:heads", "failed:messages", "failed:groups", "failed:duplicates")

    @pytest.mark.parametrize("gone", [*((name,) for name in EACH), EACH[:2], EACH[1:3]], ids="+".join)
    def test_the_counts_heal(self, rig: Rig, gone: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        fail_all(rig, *"12345")
        size = len(rig.failed("q")[0].head) + len(rig.failed("q")[0].stored)
        limits = keeping(bytes=5 * size + size // 2)
        rig.client.delete(*(rig.key("q", name) for name in gone))
        fail_all(rig, "6", options=limits)
        # The new one is kept, and old ones may go at any time.
        tasks = Archive(rig.store, FAILED)
        assert tasks.named("q", [b"6"])
        list(tasks.take_out("q", REMOVE, tasks.named("q", [b"2"]).values()))
        with monkeypatch.context() as patch:
            patch.setattr(module, "TRIMMED_PER_CALL", 2)
            finish(trim_failed(rig.store, limits.kept_failed, ["q"]))
        sizes = [
            sum(map(len, rig.client.hvals(rig.key("q", name))))
            for name in ("failed:heads", "failed:messages")
        ]
        counted = rig.client.hgetall(rig.key("q", "failed:groups"))
        assert int(counted.pop(b"")) == sum(sizes)
        [line] = counted.values()
        assert int(line.split()[0]) == rig.client.hlen(rig.key("q", "failed:heads"))
        # As many are kept as before.
        fail_all(rig, *"abcdef", options=limits)
        assert ids(rig) == [*"bcdef"]

    def test_what_is_not_found_any_more_goes(self, rig: Rig) -> None:
        fail_all(rig, "1", "2")
        keys = rig.store.keys("q").archive(FAILED)
        rig.client.delete(keys.names, keys.heads, keys.messages)
        assert rig.client.exists(keys.groups) == 1
        finish(trim_failed(rig.store, Options().kept_failed, ["q"]))
        assert rig.client.exists(*rig.store.keys("q").archive(FAILED)) == 0

    def test_of_messages_whose_index_and_heads_are_lost_the_ids_are_listed(self, rig: Rig) -> None:
        fail_all(rig, "1", "2")
        rig.client.delete(rig.key("q", "failed"), rig.key("q", "failed:heads"))
        for _ in range(2):
            finish(trim_failed(rig.store, Options().kept_failed, ["q"]))
            tasks = Archive(rig.store, FAILED)
            listed = {(task.id, task.head) for task in tasks.iter("q", Part(None, None))}
            assert listed == {("1", b""), ("2", b"")}
        again = list(tasks.take_out("q", REQUEUE, list(tasks.iter("q", Part(None, None))), lambda text: text))
        assert {task.id for task in again} == {"1", "2"}
        assert sorted(rig.ready("q")) == [payload("1"), payload("2")]


class TestRequeue:
    def test_as_if_it_had_never_been_delivered(self, rig: Rig) -> None:
        rig.put("q", with_count(payload("1"), 5, 2), step=6)
        me = rig.consumer()
        [delivery] = taken(me, "q")
        rig.fail(me, "q", delivery.tag, a_failure("1"))
        tasks = Archive(rig.store, FAILED)
        again = list(tasks.take_out("q", REQUEUE, rig.failed("q"), lambda text: text + b" "))
        assert [task.id for task in again] == ["1"]
        assert (rig.ready("q", 6), rig.failed("q"), rig.tokens("q")) == ([payload("1") + " "], [], 1)

    def test_all_at_once(self, rig: Rig) -> None:
        fail_all(rig, "1", "2")
        tasks = Archive(rig.store, FAILED)
        assert tasks.counts(["q", "nothing"]) == [2, 0]
        assert (tasks.clear("q"), tasks.clear("q"), rig.failed("q")) == (2, 0, [])

    def test_read_backwards_and_in_part(self, rig: Rig) -> None:
        fail_all(rig, *"12345")
        tasks, times = Archive(rig.store, FAILED), [task.since_ms for task in rig.failed("q")]
        back = tasks.iter("q", Part(times[1], times[3], until=b"4", from_last=True))
        assert [task.id for task in back] == ["3", "2"]
        assert tasks.counts(["q"], times[1], times[3]) == [2]


class TestGroups:
    def test_by_task_and_error(self, rig: Rig) -> None:
        me = rig.consumer()
        kinds = (("a", "KeyError"), ("a", "ValueError"), ("b", "KeyError"), ("a", "KeyError"))
        for number, (task, error) in enumerate(kinds):
            rig.database.tick()
            failure = a_failure(str(number), error, task)
            rig.fail(me, "q", str(number), failure, copy=f"0:{payload(str(number))}")
        tasks, failed = Archive(rig.store, FAILED), rig.failed("q")
        found = {(group.task, group.error): group for group in tasks.groups("q")}
        assert {kind: group.count for kind, group in found.items()} == Counter(kinds)
        of_two = found["a", "KeyError"]
        assert (of_two.first_ms, of_two.last_ms) == (round(failed[0].since_ms), round(failed[3].since_ms))
        list(tasks.take_out("q", REMOVE, [failed[0], failed[2]]))
        assert {(group.task, group.error): group.count for group in tasks.groups("q")} == {
            ("a", "KeyError"): 1,
            ("a", "ValueError"): 1,
        }

    def test_many(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(archive, "GROUPS_PER_CALL", 1)
        me = rig.consumer()
        for number in range(600):
            failure = a_failure(str(number), f"Error{number}")
            me.keep_failed("q", str(number), failure, f"0:{payload(str(number))}".encode())
        me.confirm_acks()
        assert len(Archive(rig.store, FAILED).groups("q")) == 600

    def test_foreign_ones_are_left_out(self, rig: Rig) -> None:
        fail_all(rig, "1")
        foreign = {"a b": "what?", "a b c": "1 2 3", "": "5", "one": "1 2 3", "c d": "9" * 5000 + " 1 1"}
        rig.client.hset(rig.store.keys("q").failed_groups, mapping=foreign)
        assert [group.task for group in Archive(rig.store, FAILED).groups("q")] == ["tasks.fail"]


class TestBounds:
    @pytest.mark.parametrize(
        "text",
        ["x" * 10_000_000, "two\nlines", "\x1b[31m", "\udc80"],
        ids=["long", "lines", "escape", "half"],
    )
    def test_texts(self, text: str) -> None:
        failure = a_failure("1")._replace(text=text_of(ValueError(text)))
        assert len(failure.text) <= LONGEST_TEXT
        assert "\n" not in failure.details
        assert json.loads(failure.details)["text"] == text[:LONGEST_TEXT]

    @pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
    def test_an_error_that_cannot_be_a_text(self, kind: type[BaseException]) -> None:
        class Odd(Exception):
            def __str__(self) -> str:
                raise kind

        assert text_of(Odd()) == ""

    def test_tracebacks(self) -> None:
        text = f"first{'x' * 100_000}last"
        short = shortened_traceback(text)
        assert len(short) == LONGEST_TRACEBACK
        assert short.startswith("first")
        assert short.endswith("last")
        assert (shortened_traceback(None), shortened_traceback("all")) == ("", "all")

    @pytest.mark.parametrize(
        ("retries", "tries"), [(0, 1), (3, 4), (-5, 1), (10**4300 - 1, MOST_TRIES), ("3", 1), (None, 1)]
    )
    def test_tries(self, retries: object, tries: int) -> None:
        failure = a_failure("1")._replace(tries=tries_after(retries))
        assert json.loads(failure.details)["tries"] == tries

    def test_names(self) -> None:
        assert name("a b") == "ab"
        assert len(name("\x1b" * 500)) == LONGEST_NAME
        assert name("") == name(" ") == "-"

    def test_none_is_kept_when_it_is_off(self, rig: Rig) -> None:
        with pytest.raises(ValueError, match="keeps no failed tasks"):
            rig.consumer(options=Options(keep_failed=None)).keep_failed("q", "1", a_failure("1"))


def test_history_counts_it(rig: Rig) -> None:
    fail_all(rig, "1", "2")
    assert rig.client.hget(rig.store.keys("q").history, "failed_tasks") == b"2"


def test_texts_are_not_read_twice(rig: Rig) -> None:
    """What is requeued is taken like any other message."""
    fail_all(rig, "1")
    list(Archive(rig.store, FAILED).take_out("q", REQUEUE, rig.failed("q")))
    assert texts(taken(rig.consumer("you"), "q")) == [payload("1")]
