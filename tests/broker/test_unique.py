"""One message for each key, case by case. At random: test_unique_invariant.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import pytest

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery, Request
from kombu_redisdelay.broker.keys import DEAD, FAILED
from kombu_redisdelay.broker.members import BYTES_OF_KEY
from kombu_redisdelay.broker.mover import forwarding
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import REQUEUE, Part
from kombu_redisdelay.broker.portions import BYTES_PER_CALL
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.recovery import HoldingConsumer, Recovery
from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.broker.server.scripts import (
    ACK,
    FORWARD,
    GIVE_BACK,
    REMOVE,
    RESCHEDULE,
    Script,
    named,
)
from kombu_redisdelay.broker.unacked import holder_of
from kombu_redisdelay.broker.unique import (
    DONE,
    DROPPED,
    LATEST,
    MODES,
    REPLACED,
    WAITING,
    Conflict,
    UniqueKey,
    check_unique,
    field_until_ack,
    read,
    unique_of,
    written,
)
from tests.broker.rig import Rig, a_failure, again_at, park, payload, take_out, taken

HOUR = 3_600_000
ODD = 'a "quoted" \\ 100 % key, été \U0001f600'


def key(mode: str, at_most_ms: float = 0) -> UniqueKey:
    return UniqueKey("account:42", mode, at_most_ms)


def ids(deliveries: list[Delivery]) -> list[str]:
    return [json.loads(delivery.payload)["headers"]["id"] for delivery in deliveries]


def bodies(rig: Rig) -> list[str]:
    """The bodies of what is scheduled and ready."""
    texts = [text.partition(":")[2] for text in rig.scheduled("q")] + rig.ready("q")
    return [json.loads(text)["body"] for text in texts]


def age(rig: Rig, by_ms: int) -> None:
    """Have the holder of the key be older, by any clock of the server."""
    record = rig.client.hget(rig.key("q", "unique"), "account:42")
    assert record is not None
    words = record.decode().split(" ")
    words[1] = str(int(words[1]) - by_ms)
    rig.client.hset(rig.key("q", "unique"), "account:42", " ".join(words))


def due_ms(rig: Rig, id: str) -> float:
    score = rig.client.zscore(rig.store.keys("q").schedule, id)
    assert score is not None
    return float(score)


class Calls:
    """The scripts that are run, and how many ARGV they get."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen: list[tuple[Script, int]] = []
        run = Script.__call__

        def note(script: Script, server: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
            self._seen.append((script, len(args)))
            return run(script, server, keys, args)

        monkeypatch.setattr(Script, "__call__", note)

    def of(self, script: Script, first: int, each: int) -> list[int]:
        """How many messages each run got: they come behind the *first* ARGV, and have some *each*."""
        return [(count - first) // each for seen, count in self._seen if seen is script]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


class TestWaiting:
    @pytest.mark.parametrize("in_ms", [0, HOUR])
    def test_one_that_waits_is_enough(self, rig: Rig, in_ms: int) -> None:
        assert rig.publish_unique("q", "1", key(WAITING), in_ms) is None
        assert rig.publish_unique("q", "2", key(WAITING), in_ms) == Conflict(DROPPED, "1")
        assert len(bodies(rig)) == 1

    def test_one_that_runs_is_not(self, rig: Rig) -> None:
        rig.publish_unique("q", "1", key(WAITING))
        me = rig.consumer()
        taken(me, "q")
        assert rig.publish_unique("q", "2", key(WAITING)) is None
        assert ids(taken(me, "q")) == ["2"]

    def test_other_keys_and_queues_have_nothing_to_do_with_it(self, rig: Rig) -> None:
        for number, (queue, text) in enumerate([("q", "a"), ("q", "b"), ("other", "a")]):
            assert rig.publish_unique(queue, str(number), UniqueKey(text, WAITING)) is None

    def test_a_take_frees_only_the_keys_that_its_messages_hold(self, rig: Rig) -> None:
        for number in range(4):
            rig.publish_unique("q", str(number), UniqueKey(f"key {number}", WAITING))
        rig.publish_unique("q", "next", UniqueKey("key 0", LATEST), HOUR)
        rig.publish_unique("q", "done", UniqueKey("another", DONE))
        unique = rig.key("q", "unique")
        # Other messages hold these by now.
        rig.client.hset(unique, mapping={"key 1": "r0 1 0 another", "key 2": "r0 1 0 12"})
        assert ids(taken(rig.consumer(), "q", limit=6)) == ["0", "1", "2", "3", "done"]
        assert set(rig.client.hkeys(unique)) == {b"key 0", b"key 1", b"key 2"}
        assert rig.client.hget(unique, "key 0").startswith(b"\x1e")

    @pytest.mark.parametrize("behind", [0, 1], ids=["alone", "before another"])
    def test_a_take_lets_the_latest_go_that_waits_behind_it(self, rig: Rig, behind: int) -> None:
        rig.publish_unique("q", "1", key(WAITING))
        rig.publish_unique("q", "2", key(LATEST))
        for number in range(behind):
            rig.publish_unique("q", f"behind {number}", UniqueKey("another", DONE))
        me = rig.consumer()
        assert ids(taken(me, "q", limit=1 + behind)) == ["1", "behind 0"][: 1 + behind]
        # Whoever has room comes for it.
        assert rig.tokens("q") == 1
        assert ids(taken(me, "q")) == ["2"]

    def test_a_large_one_that_is_due_lets_the_latest_go(self, rig: Rig) -> None:
        """It goes to the consumer without the detour over its ready list."""
        rig.publish_unique("q", "1", key(WAITING), 1000, body="x" * BYTES_PER_CALL)
        rig.publish_unique("q", "2", key(LATEST), 500)
        rig.database.advance(700)
        me = rig.consumer()
        assert taken(me, "q") == []
        rig.database.advance(2000)
        assert ids(taken(me, "q", limit=1)) == ["1"]
        assert ids(taken(me, "q")) == ["2"]

    def test_a_take_lets_the_latest_wait_for_one_that_runs(self, rig: Rig) -> None:
        rig.publish_unique("q", "runs", key(DONE))
        me = rig.consumer()
        (runs,) = taken(me, "q")
        rig.publish_unique("q", "1", key(WAITING))
        rig.publish_unique("q", "2", key(LATEST))
        assert ids(taken(me, "q")) == ["1"]
        assert taken(me, "q") == []
        rig.ack(me, "q", runs.tag)
        assert ids(taken(me, "q")) == ["2"]


class TestDone:
    def test_one_that_runs_is_enough(self, rig: Rig) -> None:
        rig.publish_unique("q", "1", key(DONE))
        me = rig.consumer()
        [delivery] = taken(me, "q")
        assert rig.publish_unique("q", "2", key(DONE)) == Conflict(DROPPED, "1")
        rig.ack(me, "q", delivery.tag)
        assert rig.publish_unique("q", "3", key(DONE)) is None

    def test_one_that_waits_to_be_tried_again_is_enough(self, rig: Rig) -> None:
        rig.publish_unique("q", "1", key(DONE))
        me = rig.consumer()
        [delivery] = taken(me, "q")
        assert me.requeue("q", delivery.tag, HOUR)
        assert rig.publish_unique("q", "2", key(DONE)) == Conflict(DROPPED, "1")

    def test_without_acks_it_is_done_when_it_is_taken(self, rig: Rig) -> None:
        rig.publish_unique("q", "1", key(DONE))
        taken(rig.consumer(), "q", no_ack=["q"])
        assert rig.publish_unique("q", "2", key(DONE)) is None


class TestLatest:
    def running(self, rig: Rig) -> tuple[Consumer, str]:
        rig.publish_unique("q", "1", key(LATEST), body="first")
        me = rig.consumer()
        [delivery] = taken(me, "q")
        return me, delivery.tag

    def test_the_newest_comes_next(self, rig: Rig) -> None:
        me, tag = self.running(rig)
        assert rig.publish_unique("q", "2", key(LATEST), body="second") is None
        assert rig.publish_unique("q", "3", key(LATEST), body="third") == Conflict(REPLACED, "2")
        assert taken(me, "q") == []
        assert holder_of(rig.store, "q", key(LATEST).field) == "1"
        rig.ack(me, "q", tag)
        [delivery] = taken(me, "q")
        assert ids([delivery]) == ["2"]
        assert b'"body": "third"' in delivery.payload

    def test_what_is_ready_is_not_changed(self, rig: Rig) -> None:
        rig.publish_unique("q", "1", key(LATEST), body="first")
        assert rig.publish_unique("q", "2", key(LATEST), body="second") is None
        assert sorted(bodies(rig)) == ["first", "second"]
        assert len(taken(rig.consumer(), "q")) == 1

    def test_a_failed_one_goes_first(self, rig: Rig) -> None:
        me, tag = self.running(rig)
        rig.publish_unique("q", "2", key(LATEST), body="second")
        assert me.requeue("q", tag)
        assert ids(taken(me, "q")) == ["1"]

    def test_the_newest_time_wins(self, rig: Rig) -> None:
        rig.publish_unique("q", "1", key(LATEST), HOUR)
        rig.publish_unique("q", "2", key(LATEST), 3 * HOUR)
        assert due_ms(rig, "1") == pytest.approx(rig.database.now_ms() + 3 * HOUR, abs=60_000)
        rig.publish_unique("q", "3", key(LATEST), body="now")
        assert ids(taken(rig.consumer(), "q")) == ["1"]

    def test_it_is_put_off_for_so_long_at_most(self, rig: Rig) -> None:
        """Without that, a task that comes again and again would never run."""
        rig.publish_unique("q", "1", key(LATEST, HOUR), HOUR // 2)
        rig.publish_unique("q", "2", key(LATEST, HOUR), 3 * HOUR)
        assert due_ms(rig, "1") == pytest.approx(rig.database.now_ms() + HOUR, abs=60_000)
        # It says so itself, or the worker that takes it would put it back.
        rig.database.advance(10)
        assert rig.publish_unique("q", "3", key(LATEST, 1), 3 * HOUR) == Conflict(REPLACED, "1")
        assert ids(taken(rig.consumer(), "q")) == ["1"]

    @pytest.mark.parametrize("is_busy", [False, True], ids=["", "while one runs"])
    def test_a_limit_never_hastens_it(self, rig: Rig, is_busy: bool) -> None:
        """The first is due after the limit. Newer ones neither postpone it nor bring it forward."""
        if is_busy:
            self.running(rig)
        limit = key(LATEST, HOUR)
        rig.publish_unique("q", "1", limit, 5 * HOUR)
        first_ms = due_ms(rig, "1")
        for in_ms in (6 * HOUR, 7 * HOUR, 2 * HOUR, 7 * HOUR):
            assert rig.publish_unique("q", "2", limit, in_ms) == Conflict(REPLACED, "1")
            expected_ms = first_ms - 3 * HOUR if in_ms == 2 * HOUR else first_ms
            assert due_ms(rig, "1") == pytest.approx(expected_ms, abs=60_000)

    def test_an_ack_that_is_sent_again_lets_nobody_else_go(self, rig: Rig) -> None:
        me, tag = self.running(rig)
        rig.publish_unique("q", "2", key(LATEST))
        rig.ack(me, "q", tag)
        assert ids(taken(me, "q")) == ["2"]
        rig.publish_unique("q", "3", key(LATEST))
        keys = rig.store.keys("q")
        used = (keys.unacked("me"), keys.wake)
        assert ACK(me.store.server, used, (tag, 0, key(LATEST).field)) == 0
        assert taken(me, "q") == []


def test_an_empty_key_is_freed_by_its_ack(rig: Rig) -> None:
    """Our publishers refuse it, but another program may have written it."""
    rig.publish_unique("q", "1", UniqueKey("", DONE))
    me = rig.consumer()
    [delivery] = taken(me, "q")
    assert rig.client.hlen(rig.key("q", "running")) == 1
    assert rig.ack(me, "q", delivery.tag)
    assert rig.client.hlen(rig.key("q", "running")) == 0


@pytest.mark.parametrize("mode", [WAITING, DONE])
class TestEarlier:
    def test_takes_the_place_of_what_is_due_later(self, rig: Rig, mode: str) -> None:
        rig.publish_unique("q", "1", key(mode), 2 * HOUR, body="late")
        assert rig.publish_unique("q", "2", key(mode), HOUR, body="early") == Conflict(REPLACED, "1")
        assert bodies(rig) == ["early"]
        assert due_ms(rig, "1") == pytest.approx(rig.database.now_ms() + HOUR, abs=60_000)
        assert rig.publish_unique("q", "3", key(mode), 2 * HOUR) == Conflict(DROPPED, "1")
        assert rig.publish_unique("q", "4", key(mode), body="now") == Conflict(REPLACED, "1")
        assert ids(taken(rig.consumer(), "q")) == ["1"]

    def test_not_of_what_waits_to_be_tried_again(self, rig: Rig, mode: str) -> None:
        rig.publish_unique("q", "1", key(mode))
        me = rig.consumer()
        [delivery] = taken(me, "q")
        rig.publish_unique("q", "1", key(mode), HOUR, body="retry", is_continued=True)
        rig.ack(me, "q", delivery.tag)
        assert rig.publish_unique("q", "2", key(mode)) == Conflict(DROPPED, "1")
        assert bodies(rig) == ["retry"]


def moved_to_later(rig: Rig) -> None:
    """As ``adopt`` does with what waits on a ready list for its time."""
    ready = ReadyLists(rig.store)
    found = list(ready.iter("q"))
    moved = ready.schedule_all("q", found, again_at(rig.database.now_ms() + HOUR))
    assert len(list(moved)) == len(found) == 1


def delivered_now(rig: Rig) -> None:
    schedule = Schedule(rig.store)
    [found] = schedule.iter("q", None, None)
    assert schedule.reschedule(found, found.payload, 0)


def delivered_now_and_moved_to_later(rig: Rig) -> None:
    delivered_now(rig)
    moved_to_later(rig)


def taken_once(rig: Rig) -> tuple[Consumer, Delivery]:
    delivered_now(rig)
    me = rig.consumer("another")
    [delivery] = taken(me, "q")
    return me, delivery


def not_seen_and_moved_to_later(rig: Rig) -> None:
    me, delivery = taken_once(rig)
    me.put_back([delivery])
    moved_to_later(rig)


def returned_and_moved_to_later(rig: Rig) -> None:
    me, delivery = taken_once(rig)
    assert me.give_back("q", delivery.tag)
    moved_to_later(rig)


def failed_once_and_moved_to_later(rig: Rig) -> None:
    me, delivery = taken_once(rig)
    assert me.requeue("q", delivery.tag)
    moved_to_later(rig)


def requeued_with_a_delay(rig: Rig) -> None:
    me, delivery = taken_once(rig)
    assert me.requeue("q", delivery.tag, HOUR)


def recovered_and_moved_to_later(rig: Rig) -> None:
    taken_once(rig)
    rig.end_lease("q", "another")
    rig.recover("q")
    moved_to_later(rig)


def taken_before_it_is_due(rig: Rig) -> None:
    me, delivery = taken_once(rig)
    park(me, delivery, "1", rig.database.now_ms() + HOUR)


def deferred_unknown(rig: Rig) -> None:
    me, delivery = taken_once(rig)
    me.defer_unknown("q", delivery.tag, "1", "task")
    me.confirm_acks()


def kept_as_failed_requeued_and_moved_to_later(rig: Rig) -> None:
    me, delivery = taken_once(rig)
    assert rig.fail(me, "q", delivery.tag, a_failure("1"))
    assert len(list(Archive(rig.store, FAILED).take_out("q", REQUEUE, rig.failed("q")))) == 1
    moved_to_later(rig)


def made_dead_requeued_and_moved_to_later(rig: Rig) -> None:
    me, delivery = taken_once(rig)
    assert me.make_dead("q", delivery.tag, "why")
    assert take_out(rig.store, "q", REQUEUE) == 1
    moved_to_later(rig)


def forgotten_and_moved_to_later(rig: Rig) -> None:
    """Somebody has deleted the hash."""
    delivered_now(rig)
    rig.client.delete(rig.key("q", "unique"))
    moved_to_later(rig)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "what_happens",
    [
        delivered_now,
        delivered_now_and_moved_to_later,
        not_seen_and_moved_to_later,
        returned_and_moved_to_later,
        failed_once_and_moved_to_later,
        requeued_with_a_delay,
        recovered_and_moved_to_later,
        taken_before_it_is_due,
        deferred_unknown,
        kept_as_failed_requeued_and_moved_to_later,
        made_dead_requeued_and_moved_to_later,
        forgotten_and_moved_to_later,
    ],
)
def test_no_newer_one_replaces_a_retry_whatever_happens_to_it(
    rig: Rig, mode: str, what_happens: Callable[[Rig], None]
) -> None:
    rig.publish_unique("q", "1", key(mode), body="first")
    me = rig.consumer()
    [delivery] = taken(me, "q")
    rig.publish_unique("q", "1", key(mode), HOUR, body="retry", is_continued=True)
    rig.ack(me, "q", delivery.tag)
    what_happens(rig)
    outcome = rig.publish_unique("q", "2", key(mode), body="newer")
    assert outcome == (None if mode == LATEST else Conflict(DROPPED, "1"))
    assert sorted(bodies(rig)) == ["newer", "retry"][mode != LATEST :]


@pytest.mark.parametrize("mode", MODES)
def test_nor_a_retry_that_has_expired(rig: Rig, mode: str) -> None:
    """It holds no key any more, and a worker discards it."""
    rig.publish_unique("q", "1", key(mode)._replace(expires_ms=1), HOUR, body="retry", is_continued=True)
    assert rig.publish_unique("q", "2", key(mode), body="newer") is None
    assert sorted(bodies(rig)) == ["newer", "retry"]


@pytest.mark.parametrize("mode", MODES)
def test_nor_a_task_that_has_failed_and_was_requeued(rig: Rig, mode: str) -> None:
    """It runs with its own arguments."""
    rig.publish_unique("q", "1", key(mode), HOUR, body="own")
    kept_as_failed_requeued_and_moved_to_later(rig)
    outcome = rig.publish_unique("q", "2", key(mode), body="newer")
    assert outcome == (None if mode == LATEST else Conflict(DROPPED, "1"))
    assert "own" in bodies(rig)


@pytest.mark.parametrize("mode", MODES)
class TestAll:
    def test_a_repeated_publish_leaves_it_once(self, rig: Rig, mode: str) -> None:
        """Its reply was lost, and nobody knows whether it was done."""
        for is_repeated in (False, True):
            assert rig.publish_unique("q", "1", key(mode), is_repeated=is_repeated) is None
        assert len(bodies(rig)) == 1

    def test_a_retry_is_never_dropped(self, rig: Rig, mode: str) -> None:
        rig.publish_unique("q", "1", key(mode))
        me = rig.consumer()
        [delivery] = taken(me, "q")
        rig.ack(me, "q", delivery.tag)
        rig.publish_unique("q", "2", key(mode), body="another")
        assert rig.publish_unique("q", "1", key(mode), body="retry", is_continued=True) is None
        assert sorted(bodies(rig)) == ["another", "retry"]

    def test_cancelling_frees_it(self, rig: Rig, mode: str) -> None:
        rig.publish_unique("q", "1", key(mode), HOUR)
        assert Schedule(rig.store).cancel("q", ["1"]) == [1]
        assert rig.publish_unique("q", "2", key(mode), HOUR) is None
        assert rig.client.hlen(rig.key("q", "unique")) == 1

    def test_a_purge_frees_what_waits_and_not_what_runs(self, rig: Rig, mode: str) -> None:
        rig.publish_unique("q", "1", key(mode))
        me = rig.consumer()
        taken(me, "q")
        rig.publish_unique("q", "2", key(mode))
        rig.store.purge("q")
        outcome = rig.publish_unique("q", "3", key(mode))
        assert outcome == (Conflict(DROPPED, "1") if mode == DONE else None)
        assert ids(taken(me, "q")) == (["3"] if mode == WAITING else [])

    def test_a_dead_letter_frees_it(self, rig: Rig, mode: str) -> None:
        rig.publish_unique("q", "1", key(mode))
        me = rig.consumer()
        [delivery] = taken(me, "q")
        me.make_dead("q", delivery.tag, "why")
        assert rig.publish_unique("q", "2", key(mode)) is None
        dead = Archive(rig.store, DEAD)
        letters = list(dead.iter("q", Part(None, None)))
        assert list(dead.take_out("q", REQUEUE, letters)) == []
        assert len(rig.dead("q")) == 1
        rig.store.purge("q")
        assert list(dead.take_out("q", REQUEUE, letters)) == letters
        assert rig.publish_unique("q", "3", key(mode)) == (None if mode == LATEST else Conflict(DROPPED, "1"))

    def test_what_a_worker_of_another_transport_has_taken_holds_nothing(self, rig: Rig, mode: str) -> None:
        rig.publish_unique("q", "1", key(mode))
        rig.client.rpop(rig.store.keys("q").ready)
        age(rig, 1000)
        assert rig.publish_unique("q", "2", key(mode)) is None

    @pytest.mark.parametrize("others", [1, 30])
    def test_nor_does_it_while_others_wait(self, rig: Rig, mode: str, others: int) -> None:
        rig.publish_unique("q", "1", key(mode))
        rig.client.rpop(rig.store.keys("q").ready)
        # From a producer of redis://, which writes no time.
        rig.client.lpush(rig.store.keys("q").ready, *(payload(str(number)) for number in range(others)))
        age(rig, 2000)
        assert rig.publish_unique("q", "2", key(mode)) is None

    @pytest.mark.parametrize("others", [1, 30, 200])
    def test_what_waits_behind_others_holds_its_key(self, rig: Rig, mode: str, others: int) -> None:
        rig.client.lpush(rig.store.keys("q").ready, *(payload(str(number)) for number in range(others)))
        rig.publish_unique("q", "1", key(mode))
        rig.put("q", payload("later"))
        age(rig, 2000)
        outcome = rig.publish_unique("q", "2", key(mode))
        assert outcome == (None if mode == LATEST else Conflict(DROPPED, "1"))
        assert len(bodies(rig)) == others + (3 if mode == LATEST else 2)

    def test_behind_many_without_a_time_it_holds_it_for_ten_minutes(self, rig: Rig, mode: str) -> None:
        rig.client.lpush(rig.store.keys("q").ready, *(payload(str(number)) for number in range(200)))
        rig.publish_unique("q", "1", key(mode))
        rig.client.lpop(rig.store.keys("q").ready)
        age(rig, 11 * 60_000)
        assert rig.publish_unique("q", "2", key(mode)) is None

    def test_large_messages_of_a_short_list_are_not_read(self, rig: Rig, mode: str) -> None:
        rig.put("q", *(payload(str(number), body="x" * 100_000) for number in range(20)))
        rig.publish_unique("q", "1", key(mode))
        age(rig, 2000)
        outcome = rig.publish_unique("q", "2", key(mode))
        assert outcome == (None if mode == LATEST else Conflict(DROPPED, "1"))

    @pytest.mark.parametrize("ahead_ms", [120_000, 24 * HOUR])
    def test_a_clock_that_is_ahead_makes_nothing_gone(self, rig: Rig, mode: str, ahead_ms: int) -> None:
        rig.publish_unique("q", "1", key(mode))
        ahead = rig.database.now_ms() + ahead_ms
        rig.client.rpush(rig.store.keys("q").ready, f'{{"redisdelay-due": {ahead}, {payload("ahead")[1:]}')
        rig.database.advance(1000)
        outcome = rig.publish_unique("q", "2", key(mode))
        assert outcome == (None if mode == LATEST else Conflict(DROPPED, "1"))
        assert len(bodies(rig)) == (3 if mode == LATEST else 2)

    def test_the_head_is_the_holder(self, rig: Rig, mode: str) -> None:
        """However long it waits, and whatever it says of its time."""
        ahead = rig.database.now_ms() + 24 * HOUR
        rig.publish_unique("q", "1", key(mode))
        [text] = rig.ready("q")
        rig.client.lset(rig.store.keys("q").ready, 0, re.sub(r'-due": \d+', f'-due": {ahead}', text))
        age(rig, 24 * HOUR)
        outcome = rig.publish_unique("q", "2", key(mode))
        assert outcome == (None if mode == LATEST else Conflict(DROPPED, "1"))

    def test_a_step_that_workers_do_not_know(self, rig: Rig, mode: str) -> None:
        """They put the message into the list of step 0."""
        rig.publish_unique("q", "1", key(mode), HOUR, step=9)
        rig.database.advance(HOUR)
        rig.store.steps = (0, 3)
        keys = rig.store.keys("q")
        used = (keys.ready, keys.schedule, keys.messages, keys.wake, keys.consumers, keys.ready_at(3))
        assert named(FORWARD(rig.store.server, used, (10, 10_000, keys.separator, "0"))).moved == 1
        rig.database.advance(1000)
        outcome = rig.publish_unique("q", "2", key(mode))
        assert outcome == (None if mode == LATEST else Conflict(DROPPED, "1"))
        assert len(rig.ready("q")) == 1

    @pytest.mark.parametrize("name", ["unique", "running"])
    def test_a_foreign_value_stops_nothing(self, rig: Rig, mode: str, name: str) -> None:
        rig.client.set(rig.key("q", name), "foreign")
        me = rig.consumer()
        assert rig.publish_unique("q", "1", key(mode)) is None
        assert rig.publish_unique("q", "2", key(mode), HOUR) is not None or name == "unique" or mode == LATEST
        [delivery, *_] = taken(me, "q")
        assert rig.ack(me, "q", delivery.tag)
        check_unique(rig.store, ["q"], {})
        rig.client.delete(rig.key("q", name))
        rig.client.hset(rig.key("q", name), "account:42", "foreign")
        assert rig.publish_unique("q", "3", key(mode)) is None or mode != WAITING

    def test_keys_live_as_long_as_their_queue(self, rig: Rig, mode: str) -> None:
        rig.expires_ms["q"] = HOUR
        rig.store.expires_ms["q"] = HOUR
        rig.publish_unique("q", "1", key(mode), HOUR)
        rig.publish_unique("q", "2", UniqueKey("another", mode))
        assert 0 < rig.client.pttl(rig.key("q", "unique")) <= HOUR
        taken(rig.consumer(), "q")
        if mode != WAITING:
            assert 0 < rig.client.pttl(rig.key("q", "running")) <= 3 * HOUR

    @pytest.mark.parametrize("in_ms", [0, HOUR])
    def test_one_that_has_expired_holds_nothing(self, rig: Rig, mode: str, in_ms: int) -> None:
        """Celery would run nothing of it."""
        rig.publish_unique("q", "1", key(mode)._replace(expires_ms=1), in_ms)
        assert rig.publish_unique("q", "2", key(mode), in_ms) is None
        later = rig.database.now_ms() + HOUR
        rig.publish_unique("q", "3", UniqueKey("another", mode, expires_ms=later), HOUR)
        assert rig.publish_unique("q", "4", UniqueKey("another", mode), HOUR) is not None

    def test_any_key(self, rig: Rig, mode: str) -> None:
        unique = UniqueKey(ODD, mode)
        rig.publish_unique("q", "1", unique)
        me = rig.consumer()
        [delivery] = taken(me, "q")
        assert field_until_ack(delivery.payload) == (None if mode == WAITING else written(ODD))
        assert rig.ack(me, "q", delivery.tag)
        assert rig.client.exists(rig.key("q", "unique"), rig.key("q", "running")) == 0


@pytest.mark.parametrize("text", ["not a message", payload("2")])
def test_what_runs_under_the_tag_of_a_holder_must_have_its_key(rig: Rig, text: str) -> None:
    """Another program has replaced the message."""
    rig.publish_unique("q", "1", key(DONE))
    [delivery] = taken(rig.consumer(), "q")
    rig.client.hset(rig.key("q", "unacked:me"), delivery.tag, text)
    assert holder_of(rig.store, "q", key(DONE).field) is None
    assert rig.publish_unique("q", "2", key(DONE)) is None


def test_what_is_blocked_is_not_delivered_by_hand(rig: Rig) -> None:
    rig.publish_unique("q", "1", key(LATEST))
    rig.publish_unique("q", "2", key(LATEST))
    [found] = Schedule(rig.store).iter("q", None, None)
    assert found.is_blocked
    assert not Schedule(rig.store).reschedule(found, found.payload, 0)
    assert Schedule(rig.store).next_due_ms(["q"]) is None
    assert [message.member for message in Schedule(rig.store).iter("q", None, None)] == [b"2"]


@pytest.mark.parametrize("in_ms", [0, HOUR], ids=["ready", "scheduled again"])
def test_one_that_has_to_wait_is_not_changed_by_hand(rig: Rig, in_ms: int) -> None:
    """It is next, and has a countdown. Its key is taken."""
    rig.publish_unique("q", "1", key(LATEST))
    me = rig.consumer()
    [delivery] = taken(me, "q")
    rig.publish_unique("q", "2", key(LATEST), HOUR)
    schedule = Schedule(rig.store)
    [found] = schedule.iter("q", None, None)
    assert not schedule.reschedule(found, found.payload.replace(b'""', b'"changed"'), 0)
    assert list(schedule.iter("q", None, None)) == [found]
    rig.ack(me, "q", delivery.tag)
    assert schedule.reschedule(found, found.payload, rig.database.now_ms() + in_ms)
    assert ids(taken(me, "q")) == ([] if in_ms else ["2"])


def test_what_waits_for_a_key_that_nobody_holds_is_let_go(rig: Rig) -> None:
    rig.publish_unique("q", "1", key(LATEST))
    me = rig.consumer()
    taken(me, "q")
    rig.publish_unique("q", "2", key(LATEST))
    rig.client.delete(rig.key("q", "unacked:me"))
    assert taken(me, "q") == []
    check_unique(rig.store, ["q"], {})
    assert ids(taken(me, "q")) == ["2"]


def test_what_is_blocked_and_in_no_hash_any_more_is_let_go(rig: Rig) -> None:
    """Somebody has deleted the hash."""
    for number in range(30):
        for name in ("running", "next"):
            rig.publish_unique("q", f"{name} {number}", UniqueKey(f"key {number}", LATEST))
    me = rig.consumer()
    begin_at: dict[str, Sequence[bytes]] = {}
    runs = taken(me, "q", limit=100)
    rig.publish_unique("q", "that has a holder", UniqueKey("key 0", LATEST))
    record = rig.client.hget(rig.key("q", "unique"), "key 0")
    rig.client.delete(rig.key("q", "unique"))
    rig.client.hset(rig.key("q", "unique"), "key 0", record)
    for _ in range(3):
        check_unique(rig.store, ["q"], begin_at)
    assert len(runs) == 30
    assert len(taken(me, "q", limit=100)) == 29
    [left] = Schedule(rig.store).iter("q", None, None)
    assert left.is_blocked


@pytest.mark.one_server
def test_a_key_takes_little_memory(rig: Rig) -> None:
    if rig.client.__class__.__module__.startswith("fakeredis"):
        pytest.skip("fakeredis does not know")
    for number in range(2000):
        rig.publish_unique("q", f"{number:036}", UniqueKey(f"{number:064}", DONE))
    assert rig.client.memory_usage(rig.key("q", "unique"), samples=0) / 2000 <= 200
    me = rig.consumer("elsewhere.example.com:12345:0123456789ab:1:celery@worker-1")
    while taken(me, "q", limit=500):
        pass
    assert rig.client.memory_usage(rig.key("q", "running"), samples=0) / 2000 <= 200


class TestManyAtOnce:
    """A script that moves messages with keys moves fewer of them: each takes longer."""

    MANY, FEW = 100, 64

    def publish(self, rig: Rig, in_ms: int = 0) -> list[str]:
        ids = [str(number) for number in range(self.MANY)]
        for id in ids:
            rig.publish_unique("q", id, UniqueKey(id, DONE), in_ms)
        return ids

    def test_take(self, rig: Rig) -> None:
        self.publish(rig)
        me = rig.consumer(options=Options(max_batch=500))
        takes = [me.take(Request(["q"], 500)) for _ in range(2)]
        assert [0 < len(take.deliveries) <= self.FEW for take in takes] == [True] * 2
        # The consumer comes again at once.
        assert [set(take.more) for take in takes] == [{"q"}, set()]
        assert sum(len(take.deliveries) for take in takes) == self.MANY

    def test_others_are_taken_as_always(self, rig: Rig) -> None:
        rig.publish_unique("q", "1", key(DONE))
        rig.put("q", *map(payload, map(str, range(self.MANY))))
        assert len(taken(rig.consumer(), "q", limit=500)) == self.MANY + 1

    def test_what_is_due(self, rig: Rig) -> None:
        self.publish(rig, HOUR)
        rig.database.advance(HOUR)
        moved, left = [], 0
        while not left:
            found = named(rig.store.run(forwarding(rig.store, "q")))
            count, left = found.moved, found.next_due_us
            moved.append(count)
        assert max(moved) <= self.FEW
        assert sum(moved) == self.MANY

    def test_give_back(self, rig: Rig, calls: Calls) -> None:
        self.publish(rig)
        me = rig.consumer()
        deliveries = [delivery for _ in range(2) for delivery in taken(me, "q", limit=500)]
        me.put_back(deliveries)
        assert max(calls.of(GIVE_BACK, first=13, each=2)) <= self.FEW
        assert rig.unacked("q") == {}
        assert len(rig.ready("q")) == self.MANY

    def test_recover(self, rig: Rig) -> None:
        self.publish(rig)
        me = rig.consumer()
        while taken(me, "q", limit=500):
            pass
        holder = HoldingConsumer("q", "me", lease_counts=False)
        round_trips = Recovery(rig.store, Options(retry_wait=0)).give_back([holder], "returned")
        assert sum(1 for _ in round_trips) == 2
        assert len(rig.ready("q")) == self.MANY

    def test_cancel(self, rig: Rig) -> None:
        every = self.publish(rig, HOUR)
        wanted = [argument for id in every for argument in (id, "")]
        keys = rig.store.keys("q").scheduling
        _, done, _ = REMOVE(rig.store.server, keys, (200, 256 * 1024, 0, *wanted))
        assert 0 < done <= self.FEW
        assert sum(Schedule(rig.store).cancel("q", every)) == self.MANY - done

    def test_remove(self, rig: Rig, calls: Calls) -> None:
        self.publish(rig, HOUR)
        schedule = Schedule(rig.store)
        assert len(list(schedule.remove("q", schedule.iter("q", None, None)))) == self.MANY
        assert max(calls.of(REMOVE, first=3, each=2)) <= self.FEW

    def test_deliver_now(self, rig: Rig, calls: Calls) -> None:
        self.publish(rig, HOUR)
        schedule = Schedule(rig.store)
        found = list(schedule.iter("q", None, None))
        assert len(list(schedule.reschedule_all("q", found, lambda each: (each.stored, 1)))) == self.MANY
        assert max(calls.of(RESCHEDULE, first=3, each=4)) <= self.FEW

    def test_a_key_counts_the_same_in_lua(self) -> None:
        text = (files("kombu_redisdelay") / "lua" / "include" / "unique_member.lua").read_text("utf-8")
        assert re.findall(r"^local BYTES_OF_KEY = (\d+)$", text, re.MULTILINE) == [str(BYTES_OF_KEY)]


@pytest.mark.one_server
@pytest.mark.parametrize("mode", [DONE, LATEST])
def test_an_ack_reads_only_who_runs(rig: Rig, mode: str) -> None:
    """Others have other keys, and none waits for this one."""
    if rig.client.__class__.__module__.startswith("fakeredis"):
        pytest.skip("fakeredis does not know")
    for number in range(4):
        rig.publish_unique("q", str(number), UniqueKey(f"key {number}", mode))
    me = rig.consumer()
    first, second = taken(me, "q", limit=2)
    for delivery, expected in ((first, None), (second, 1)):
        rig.client.config_resetstat()
        assert rig.ack(me, "q", delivery.tag)
        # The first one has brought the script.
        calls = rig.client.info("commandstats")["cmdstat_hget"]["calls"]
        assert expected in (None, calls)


class TestHeaders:
    def test_none(self) -> None:
        assert unique_of({"id": "1"}) is None

    def test_it_expires_with_its_task(self) -> None:
        headers = {"x-unique": "a", "expires": "1970-01-01T00:00:01+00:00"}
        assert unique_of(headers) == UniqueKey("a", WAITING, expires_ms=1000)
        assert unique_of({**headers, "expires": "never"}) == UniqueKey("a", WAITING)

    def test_all(self) -> None:
        headers = {"x-unique": "a", "x-unique-while": "latest", "x-unique-at-most": 1.5}
        assert unique_of(headers) == UniqueKey("a", LATEST, 1500)

    @pytest.mark.parametrize(
        ("headers", "message"),
        [
            ({"x-unique": ""}, "not empty"),
            ({"x-unique": 5}, "must be a text"),
            ({"x-unique": "a\n"}, "control characters"),
            ({"x-unique": "\ud800"}, "UTF-8"),
            ({"x-unique": "é" * 129}, "256 bytes at most, not 258"),
            ({"x-unique": "a", "x-unique-while": "ever"}, "must be one of 'waiting', 'done', 'latest'"),
            ({"x-unique": "a", "x-unique-at-most": 5}, "goes with the mode 'latest'"),
            ({"x-unique-while": "done"}, "header 'x-unique-while' needs header 'x-unique'"),
            ({"x-unique": "a", "x-unique-while": "latest", "x-unique-at-most": 0}, "above 0"),
            ({"x-unique": "a", "x-unique-while": "latest", "x-unique-at-most": True}, "above 0"),
        ],
    )
    def test_wrong(self, headers: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            unique_of(headers)

    @pytest.mark.parametrize("text", [ODD, "%22", "%5C%25", "plain"])
    def test_a_key_is_read_as_it_was_written(self, text: str) -> None:
        assert read(json.loads(f'"{written(text)}"')) == text

    @pytest.mark.parametrize(
        "payload", [b"", b'{"a": 1}', b'{"redisdelay-unique": ["l"', b'{"redisdelay-unique": ["l", 5]}']
    )
    def test_what_another_program_has_written_holds_nothing(self, payload: bytes) -> None:
        assert field_until_ack(payload) is None
