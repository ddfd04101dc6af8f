"""Limits and pauses of keys of fair queues."""

from __future__ import annotations

from contextlib import suppress

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery, Request
from kombu_redisdelay.broker.fair_counts import (
    COUNTS_FOR_MS,
    LOOKS_FOR_MS,
    QUEUES_PER_LOOK,
    count_keys,
    look_at_counted,
)
from kombu_redisdelay.broker.fair_keys import (
    PLAIN,
    StoredKeyLimits,
    iter_keys,
    iter_limited_keys,
    key_states,
    sorted_by_key,
)
from kombu_redisdelay.broker.limits import FairQueues, LimitStore
from kombu_redisdelay.broker.maintenance import Maintenance
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL, finish
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.operations.stats import queue_stats
from tests.broker.database import FakeDatabase
from tests.broker.fair_kit import ids, keys_of, numbered, publish, take_all
from tests.broker.rig import Rig, a_failure, check_fair, dead_letter, park, taken, takes_of
from tests.broker.test_fair_invariant import fair_payload, id_of
from tests.clock import Clock
from tools.harness.process import wait_until

HOUR = 3_600_000


class TestLimits:
    def test_of_a_key_only_so_many_are_unacked(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        publish(rig, "a", *numbered("a", 3))
        publish(rig, "b", *numbered("b", 3))
        me = rig.consumer()
        first = taken(me, "q")
        assert sorted(ids(first)) == ["a0", "b0"]
        assert taken(me, "q") == []
        rig.use_up_token("q")
        assert rig.ack(me, "q", next(each.tag for each in first if id_of(each.payload) == "a0"))
        assert rig.tokens("q") == 1
        assert ids(taken(me, "q")) == ["a1"]

    def test_what_is_unacked_counts_when_the_limit_comes(self, rig: Rig, fair: FairQueues) -> None:
        publish(rig, "a", *numbered("a", 3))
        # Was published before the queue knew keys, by others.
        rig.put("q", fair_payload("b0", "b", stock=True), fair_payload("b1", "b"))
        me = rig.consumer()
        held = taken(me, "q", limit=2)
        assert sorted(ids(held)) == ["a0", "b0"]
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        assert [(state.key, state.unacked) for state in sorted(iter_keys(rig.store, "q"))] == [
            ("a", 1),
            ("b", 1),
        ]
        assert taken(me, "q") == []
        for delivery in held:
            rig.ack(me, "q", delivery.tag)
        assert sorted(ids(taken(me, "q"))) == ["a1", "b1"]

    def test_nothing_is_taken_while_it_is_counted(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        publish(rig, "a", "a0")
        rig.client.hset(rig.store.keys("q").limits, "counting", "1")
        me = rig.consumer()
        assert taken(me, "q") == []
        assert rig.tokens("q") == 0
        # Somebody else ends what was begun.
        check_fair(rig.store, ["q"], {})
        assert rig.tokens("q") == 1
        assert ids(taken(me, "q")) == ["a0"]

    @pytest.mark.parametrize(
        "how",
        ["returned", "failed", "later", "dead", "unreadable", "left", "lost", "parked", "kept", "closed"],
    )
    def test_whatever_becomes_of_it_its_place_is_free(self, rig: Rig, fair: FairQueues, how: str) -> None:
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        publish(rig, "a", "a0", "a1")
        me = rig.consumer()
        [delivery] = taken(me, "q")
        rig.use_up_token("q")
        if how == "returned":
            me.give_back("q", delivery.tag)
        elif how == "dead":
            me.make_dead("q", delivery.tag, "why")
        elif how == "unreadable":
            dead_letter(me, delivery, "why")
        elif how == "parked":
            park(me, delivery, "a0", rig.database.now_ms() + HOUR)
        elif how == "kept":
            assert rig.fail(me, "q", delivery.tag, a_failure("a0"))
        elif how == "closed":
            assert me.give_back_all()
        elif how == "left":
            me.defer_unknown("q", delivery.tag, "a0", "task")
            me.confirm_acks()
        elif how == "lost":
            rig.end_lease("q")
            rig.recover("q")
        else:
            me.requeue("q", delivery.tag, HOUR if how == "later" else None)
        assert rig.tokens("q") == 1
        comes_first = how in ("returned", "lost", "closed")
        assert ids(taken(rig.consumer("other"), "q")) == ["a0" if comes_first else "a1"]

    def test_the_ack_of_one_with_a_unique_key_frees_its_place(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        member = '"redisdelay-unique": ["d", "first", "u"]'
        rig.put("q", fair_payload("first", "a").replace('"body"', f'{member}, "body"'))
        rig.client.hset(rig.key("q", "unique"), "u", f"r0 {rig.database.now_ms()} 0 first")
        publish(rig, "a", "second")
        me = rig.consumer()
        [delivery] = taken(me, "q")
        assert rig.client.hkeys(rig.key("q", "running")) == [b"u"]
        rig.use_up_token("q")
        assert rig.ack(me, "q", delivery.tag)
        assert rig.tokens("q") == 1
        assert ids(taken(me, "q")) == ["second"]

    def test_a_place_that_another_program_has_freed_is_found(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        publish(rig, "a", "a0", "a1")
        me = rig.consumer()
        [delivery] = taken(me, "q")
        assert taken(me, "q") == []
        rig.client.hdel(rig.store.keys("q").unacked("me"), delivery.tag)
        assert taken(me, "q") == []
        check_fair(rig.store, ["q"], {})
        assert ids(taken(me, "q")) == ["a1"]

    def test_a_rate(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=2))
        publish(rig, "a", *numbered("a", 5))
        publish(rig, "b", "b0")
        me = rig.consumer()
        assert sorted(ids(taken(me, "q"))) == ["a0", "a1", "b0"]
        assert taken(me, "q") == []
        rig.database.advance(HOUR)
        assert ids(taken(me, "q")) == ["a2"]

    def test_a_rate_that_nobody_uses_any_more_is_forgotten(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1))
        publish(rig, "a", "a0")
        taken(rig.consumer(), "q")
        tats = rig.key("q", "tats")
        check_fair(rig.store, ["q"], {})
        assert rig.client.zcard(tats) == 1
        rig.database.advance(HOUR)
        check_fair(rig.store, ["q"], {})
        assert not rig.client.exists(tats)

    @pytest.mark.parametrize("whose", ["every", "own"])
    def test_a_key_waits_no_longer_than_a_higher_rate_wants(
        self, rig: Rig, fair: FairQueues, whose: str
    ) -> None:
        """It waited until the lower rate would have allowed the next message."""

        def limit(interval_ms: int) -> None:
            limits = StoredKeyLimits(interval_us=interval_ms * 1000.0, burst=2)
            fair.limit(["q"], limits) if whose == "every" else fair.limit_key("q", "a", limits)

        limit(HOUR)
        publish(rig, "a", *numbered("a", 5))
        me = rig.consumer()
        assert len(take_all(me)) == 2
        rig.use_up_token("q")
        limit(HOUR // 60)
        assert rig.tokens("q") == 1
        assert me.take(Request(("q",), 5)).due["q"] == pytest.approx(60, abs=5)
        rig.database.advance(HOUR // 60)
        assert ids(taken(me, "q")) == ["a2"]

    def test_a_key_waits_no_longer_because_the_clock_was_set(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(interval_us=60e6, burst=1))
        publish(rig, "a", *numbered("a", 2))
        me = rig.consumer()
        take_all(me)
        for zset in ("tats", "alarms"):
            rig.client.zincrby(rig.key("q", zset), HOUR * 1000, "a")
        check_fair(rig.store, ["q"], {})
        assert me.take(Request(("q",), 5)).due["q"] == pytest.approx(60, abs=5)
        rig.database.advance(60_000)
        assert ids(taken(me, "q")) == ["a1"]

    def test_what_is_used_of_a_rate_outlives_off_and_on(self, rig: Rig, fair: FairQueues) -> None:
        """It went when the rate before "off" did not need it any more: then each key had a new burst."""
        fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=2))
        publish(rig, "a", "a0")
        me = rig.consumer()
        taken(me, "q")
        fair.switch_off(["q"])
        fair.switch_on(["q"])
        publish(rig, "a", "a1")
        taken(me, "q")
        assert rig.client.pttl(rig.key("q", "tats")) > 1.5 * HOUR

    def test_one_that_a_worker_does_not_know_uses_nothing_of_a_rate(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1))
        publish(rig, "a", *numbered("a", 3))
        me = rig.consumer()
        [unknown] = taken(me, "q")
        assert taken(me, "q") == []
        rig.use_up_token("q")
        me.defer_unknown("q", unknown.tag, "a0", "task")
        me.confirm_acks()
        assert rig.tokens("q") == 1
        assert ids(taken(me, "q")) == ["a1"]

    def test_a_rate_is_not_forgotten_if_the_queue_was_plain(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=2))
        me = rig.consumer()
        for id in ("a0", "a1"):
            publish(rig, "a", id)
            assert ids(taken(me, "q")) == [id]
            fair.switch_off(["q"])
            fair.switch_on(["q"])
        assert rig.client.pttl(rig.key("q", "tats")) > 1.5 * HOUR

    def test_a_consumer_comes_when_a_rate_allows_it(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1))
        publish(rig, "a", *numbered("a", 2))
        me = rig.consumer()
        taken(me, "q")
        assert me.take(Request(("q",), 5)).due["q"] == pytest.approx(HOUR / 1000, rel=0.01)

    def test_of_the_idle_consumers_one_comes(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1))
        publish(rig, "a", *numbered("a", 2))
        busy, watcher, other = (rig.consumer(name) for name in ("busy", "watcher", "other"))
        took = busy.take(Request(("q",), 1))
        # It has something to do, and wakes one that has not.
        assert ids(took.deliveries) == ["a0"]
        assert took.due == {}
        assert rig.tokens("q") == 1
        for _ in range(2):
            assert watcher.take(Request(("q",), 1)).due["q"] == pytest.approx(3600, abs=5)
            assert takes_of(watcher, ["q"]).look().due["q"] == pytest.approx(3600, abs=5)
            assert rig.tokens("q") == 0
            assert other.take(Request(("q",), 1)).due == {}
            assert takes_of(other, ["q"]).look().due == {}

    @pytest.mark.parametrize(
        ("limits", "left"),
        [(StoredKeyLimits(), {b"fair"}), (StoredKeyLimits(concurrency=2), {b"fair", b"key_concurrency"})],
    )
    @pytest.mark.parametrize("is_own", [False, True])
    def test_nobody_watches_a_rate_that_has_ended(
        self, rig: Rig, fair: FairQueues, limits: StoredKeyLimits, left: set[bytes], is_own: bool
    ) -> None:
        rate = StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1)
        if is_own:
            fair.limit_key("q", "a", rate)
        else:
            fair.limit(["q"], rate)
        publish(rig, "a", *numbered("a", 2))
        me, control = rig.consumer(), rig.store.keys("q").limits
        for _ in range(2):
            me.take(Request(("q",), 1))
        assert rig.client.hexists(control, "key_watcher")
        fair.limit_key("q", "a", StoredKeyLimits())
        fair.limit(["q"], limits)
        assert set(rig.client.hkeys(control)) == left

    def test_nobody_watches_when_the_queue_is_plain(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1))
        publish(rig, "a", *numbered("a", 2))
        me, control = rig.consumer(), rig.store.keys("q").limits
        for _ in range(2):
            me.take(Request(("q",), 1))
        assert rig.client.hexists(control, "key_watcher")
        fair.switch_off(["q"])
        taken(me, "q")
        assert set(rig.client.hkeys(control)) == {b"key_interval_us", b"key_burst"}

    def test_a_watcher_that_has_messages_wakes_another_one(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1))
        publish(rig, "a", *numbered("a", 2))
        watcher, other = rig.consumer("watcher"), rig.consumer("other")
        for _ in range(2):
            watcher.take(Request(("q",), 1))
        publish(rig, "b", "b0")
        rig.use_up_token("q")
        assert ids(watcher.take(Request(("q",), 1)).deliveries) == ["b0"]
        assert rig.tokens("q") == 1
        assert other.take(Request(("q",), 1)).due["q"] == pytest.approx(3600, abs=5)

    def test_others_come_for_an_earlier_key_or_when_the_watcher_does_not(
        self, rig: Rig, fair: FairQueues
    ) -> None:
        fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1))
        fair.limit_key("q", "b", StoredKeyLimits(interval_us=HOUR * 500.0, burst=1))
        publish(rig, "a", *numbered("a", 2))
        watcher, other = rig.consumer("watcher"), rig.consumer("other")
        for _ in range(2):
            watcher.take(Request(("q",), 1))
        publish(rig, "b", *numbered("b", 2))
        other.take(Request(("q",), 1))
        assert other.take(Request(("q",), 1)).due["q"] == pytest.approx(1800, abs=5)
        rig.database.advance(HOUR)
        assert takes_of(watcher, ["q"]).look().due["q"] == pytest.approx(0, abs=1)
        assert sorted(ids(taken(watcher, "q"))) == ["a1", "b1"]

    def test_one_key_has_limits_of_its_own(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        fair.limit_key("q", "a", StoredKeyLimits(concurrency=2))
        for key in "ab":
            publish(rig, key, *numbered(key, 3))
        me = rig.consumer()
        assert sorted(ids(taken(me, "q"))) == ["a0", "a1", "b0"]
        fair.limit_key("q", "a", StoredKeyLimits())
        assert taken(me, "q") == []
        assert [state.own for state in key_states(rig.store, "q", ["a"])] == [StoredKeyLimits()]

    def test_a_key_is_paused(self, rig: Rig, fair: FairQueues) -> None:
        fair.pause_key("q", "a")
        publish(rig, "a", "a0")
        publish(rig, "b", "b0")
        me = rig.consumer()
        assert ids(taken(me, "q")) == ["b0"]
        [state] = key_states(rig.store, "q", ["a"])
        assert state.paused_ms is not None
        assert state.is_at_limit
        assert state.ready == {0: 1}
        rig.use_up_token("q")
        fair.resume_key("q", "a")
        assert rig.tokens("q") == 1
        assert ids(taken(me, "q")) == ["a0"]
        assert [*iter_keys(rig.store, "q")] == []

    def test_keys_at_a_limit_are_not_looked_at(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        for number in range(50):
            publish(rig, f"k{number}", f"{number}-0", f"{number}-1")
        me = rig.consumer()
        held = take_all(me)
        assert len(held) == 50
        assert rig.client.zcard(rig.store.keys("q").turns(0)) == 0
        assert rig.client.hlen(rig.store.keys("q").limited) == 50
        assert me.take(Request(("q",), 5)).more == {}

    def test_a_take_of_many_is_bounded(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(concurrency=3))
        for number in range(100):
            publish(rig, f"k{number}", *numbered(f"{number}-", 3))
        me = rig.consumer()
        for _ in range(2):
            taken(me, "q", limit=0)
        took = me.take(Request(("q",), 500))
        assert len(took.deliveries) == 40
        assert took.more == {"q": 1}
        assert len(take_all(me, limit=500)) == 300 - 40

    def test_a_new_limit_lets_keys_go_on(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        publish(rig, "a", *numbered("a", 4))
        me = rig.consumer()
        assert len(take_all(me)) == 1
        fair.limit(["q"], StoredKeyLimits(concurrency=3))
        assert len(take_all(me)) == 2
        fair.limit(["q"], StoredKeyLimits())
        assert len(take_all(me)) == 1
        left = {name.rpartition(b"}:")[2] for name in rig.all_keys()}
        assert not left & {b"active", b"unacked-keys", b"limited"}

    def test_nothing_is_left_when_no_limit_is(self, rig: Rig, fair: FairQueues) -> None:
        """A queue with this hash costs more."""
        fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1))
        publish(rig, "a", *numbered("a", 2))
        me = rig.consumer()
        assert len(taken(me, "q")) == 1
        assert me.take(Request(("q",), 1)).due
        fair.limit(["q"], StoredKeyLimits())
        fair.switch_off(["q"])
        assert ids(take_all(me)) == ["a1"]
        assert fair.states(["q"]) == [PLAIN]
        assert not rig.client.exists(rig.store.keys("q").limits)

    def test_a_consumer_of_many_queues_frees_its_permit(self, rig: Rig, fair: FairQueues) -> None:
        """If others were woken, a take does not get to all that are polled, and says nothing of the limits of
        these."""
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        publish(rig, "a", "a0", "a1")
        others = [f"other-{number}" for number in range(20)]
        me, request = rig.consumer(), Request((*others, "q"), 1, in_turn=False, polled=["q"])
        [delivery] = me.take(request).deliveries
        rig.store.wake(*others)
        assert set(me.take(request).more) == {"q"}
        assert rig.ack(me, "q", delivery.tag)
        assert not rig.client.exists(rig.store.keys("q").unacked_keys)
        assert ids(taken(me, "q")) == ["a1"]


@pytest.mark.one_server
class TestManyWereAtALimit:
    """While Redis saves, it does not make a hash smaller that has lost most of its fields. Then a scan of
    many places may find few of them, or none."""

    @pytest.fixture(autouse=True)
    def few(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        for number in range(20):
            publish(rig, f"k{number}", *numbered(f"{number}-", 2))
        limited = rig.store.keys("q").limited
        assert len(take_all(rig.consumer())) == 20
        if not isinstance(rig.database, FakeDatabase):
            rig.client.config_set("rdb-key-save-delay", 1_000_000)
            rig.client.hset(limited, mapping={f"gone{number}": "" for number in range(8000)})
            # That of another test ends when its keys are gone.
            wait_until(lambda: not rig.client.info("persistence")["rdb_bgsave_in_progress"], 30, "it saves")
            rig.client.bgsave()
            rig.client.config_set("rdb-key-save-delay", 0)
            rig.client.hdel(limited, *(f"gone{number}" for number in range(8000)))
        assert rig.client.hlen(limited) == 20

    def test_all_are_purged(self, rig: Rig) -> None:
        assert rig.store.purge("q") == 20
        assert not rig.client.exists(rig.store.keys("q").limited)

    def test_all_are_moved_back(self, rig: Rig, fair: FairQueues) -> None:
        fair.switch_off(["q"])
        assert len(take_all(rig.consumer("other"))) == 20
        assert fair.states(["q"]) == [PLAIN]


def test_the_keys_that_are_limited(rig: Rig, fair: FairQueues) -> None:
    for key in "abc":
        publish(rig, key, key)
    fair.pause_key("q", "b")
    fair.limit_key("q", "x", StoredKeyLimits(concurrency=1))
    assert keys_of(take_all(rig.consumer())) == ["a", "c"]
    found = {
        state.key: (state.paused_ms is not None, state.is_at_limit)
        for state in iter_limited_keys(rig.store, "q")
    }
    assert found == {"b": (True, True), "x": (False, False)}


@pytest.mark.parametrize("foreign", ["x", "", "nan", "1.5", "1e309", "-1000", "9" * 5000])
def test_what_another_program_has_written_is_no_number(rig: Rig, fair: FairQueues, foreign: str) -> None:
    """It ended workers, and every view of all queues."""
    keys = rig.store.keys("q")
    publish(rig, "a", *numbered("a", 3))
    take_all(rig.consumer(), limit=1)
    rig.client.hset(keys.fair, "n:0", foreign)
    rig.client.hset(keys.fair.removesuffix("fair") + "active", "a", foreign)
    rig.client.hset(keys.key_limits, "a", f"{foreign} {foreign} {foreign} {foreign}")
    rig.client.hset(keys.limited, "b", f"{foreign} 1")
    assert sorted_by_key(rig.store, ["q"]) == [{}]
    assert {state.key for state in iter_keys(rig.store, "q")} >= {"a"}
    assert key_states(rig.store, "q", ["a"])[0].unacked is None
    assert queue_stats(rig.store, ["q"])


@pytest.mark.parametrize("foreign", ["x", "nan", "1.5", "1e309"])
def test_it_does_not_keep_messages_from_moving(rig: Rig, fair: FairQueues, foreign: str) -> None:
    fair.limit(["q"], StoredKeyLimits(concurrency=1, interval_us=HOUR * 1000.0, burst=9))
    publish(rig, "a", *numbered("a", 3))
    me = rig.consumer()
    [first] = taken(me, "q")
    rig.client.hset(rig.store.keys("q").fair, "n:0", foreign)
    rig.client.hset(rig.key("q", "active"), "a", foreign)
    for zset in ("tats", "alarms"):
        rig.client.zadd(rig.key("q", zset), {"other": 1e300})
    me.give_back("q", first.tag)
    [again] = taken(me, "q")
    assert id_of(again.payload) == "a0"
    rig.client.hset(rig.key("q", "active"), "a", foreign)
    assert rig.ack(me, "q", again.tag)
    ready = ReadyLists(rig.store)
    for message in [*ready.iter("q")]:
        rig.client.hset(rig.store.keys("q").fair, "n:0", foreign)
        assert ready.remove(message)
    rig.store.purge("q")
    assert not rig.client.exists(rig.store.keys("q").fair)


def test_nothing_waits_for_a_rate_when_all_messages_were_removed(rig: Rig, fair: FairQueues) -> None:
    fair.limit(["q"], StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1))
    publish(rig, "a", *numbered("a", 3))
    take_all(rig.consumer())
    assert rig.client.exists(rig.key("q", "alarms"), rig.store.keys("q").limited) == 2
    ready = ReadyLists(rig.store)
    assert len([*ready.remove_all("q", [*ready.iter("q")])]) == 2
    assert not rig.client.exists(rig.key("q", "alarms"), rig.store.keys("q").limited)


def look_at_all_counted(rig: Rig) -> None:
    begin_at: dict[str, bytes] = {}
    while begin_at.get("q") != b"0":
        look_at_counted(rig.store, ["q"], begin_at)


class TestTakenBeforeTheLimit:
    """A consumer that has taken before a limit was set does not know of it, and its acks free no permit."""

    @pytest.fixture
    def held(self, rig: Rig, fair: FairQueues) -> Delivery:
        publish(rig, "a", *numbered("a", 3))
        [delivery] = taken(rig.consumer("busy"), "q", limit=1)
        return delivery

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    def maintenance(self, rig: Rig, consumer: Consumer, clock: Clock) -> Maintenance:
        recoverer = rig.recoverer(consumer.name)
        return Maintenance(rig.store, recoverer, Options(), 10.0, clock=clock, limited=consumer.limited)

    @pytest.mark.parametrize("how", ["key", "every", "raised", "fair again"])
    def test_a_look_frees_its_permit(self, rig: Rig, fair: FairQueues, held: Delivery, how: str) -> None:
        if how == "fair again":
            fair.limit_key("q", "a", StoredKeyLimits(concurrency=1))
            fair.switch_off(["q"])
            fair.switch_on(["q"])
        elif how == "every":
            fair.limit(["q"], StoredKeyLimits(concurrency=1))
        else:
            fair.limit_key("q", "a", StoredKeyLimits(concurrency=1))
        busy, idle = rig.consumer("busy"), rig.consumer("idle")
        assert taken(idle, "q") == []
        if how == "raised":
            fair.limit_key("q", "a", StoredKeyLimits(concurrency=2))
            assert ids(taken(idle, "q")) == ["a1"]
        # A new consumer object of this name knows of no limit.
        assert rig.ack(busy, "q", held.tag)
        rig.use_up_token("q")
        look_at_counted(rig.store, ["q"], {})
        assert rig.tokens("q") == 1
        assert ids(taken(idle, "q")) == ["a2" if how == "raised" else "a1"]

    def test_one_consumer_looks_each_second(
        self, rig: Rig, fair: FairQueues, held: Delivery, clock: Clock
    ) -> None:
        fair.limit_key("q", "a", StoredKeyLimits(concurrency=1))
        both = [rig.consumer("idle"), rig.consumer("other")]
        for consumer in both:
            assert taken(consumer, "q") == []
            assert consumer.limited == {"q"}
        one, two = (self.maintenance(rig, consumer, clock) for consumer in both)

        def maintain(*some: Maintenance) -> None:
            for each in some:
                while each.round_trip(["q"]):
                    pass

        maintain(one, two)
        clock.now += 1
        assert rig.ack(rig.consumer("busy"), "q", held.tag)
        maintain(two)
        assert taken(both[0], "q") == []
        maintain(one)
        [delivery] = taken(both[0], "q")
        assert id_of(delivery.payload) == "a1"
        # The first one is killed: the other one looks when the claim has ended.
        rig.client.hdel(rig.store.keys("q").unacked("idle"), delivery.tag)
        assert rig.client.pttl(rig.store.keys("q").claim("counted")) <= LOOKS_FOR_MS
        rig.client.delete(rig.store.keys("q").claim("counted"))
        clock.now += LOOKS_FOR_MS / 1000
        maintain(two)
        assert ids(taken(both[1], "q")) == ["a2"]

    def test_nobody_looks_where_only_the_queue_is_limited(self, rig: Rig, clock: Clock) -> None:
        LimitStore(rig.store).limit(["plain"], {"concurrency": 1})
        me = rig.consumer()
        taken(me, "plain")
        assert me.limited == {"plain"}
        maintenance = self.maintenance(rig, me, clock)
        while maintenance.round_trip(["plain"]):
            pass
        assert not rig.client.exists(rig.store.keys("plain").claim("counted"))

    def test_of_very_many_queues_some_are_looked_at_each_second(self, rig: Rig, clock: Clock) -> None:
        queues = [f"q{number}" for number in range(QUEUES_PER_LOOK + 10)]
        for queue in queues:
            rig.client.hset(rig.store.keys(queue).limits, "fair", "on")
        claims = [rig.store.keys(queue).claim("counted") for queue in queues]
        maintenance = Maintenance(
            rig.store, rig.recoverer("me"), Options(), 10.0, clock=clock, limited=set(queues)
        )
        for claimed in (QUEUES_PER_LOOK, len(queues)):
            while maintenance.round_trip(queues):
                pass
            assert sum(map(rig.client.exists, claims)) == claimed
            clock.now += 1

    def test_many_of_them(self, rig: Rig, fair: FairQueues) -> None:
        publish(rig, "a", *numbered("a", 320))
        busy = rig.consumer("busy")
        held: list[Delivery] = []
        while len(held) < 319:
            held += taken(busy, "q", limit=319 - len(held))
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        for delivery in held:
            rig.ack(busy, "q", delivery.tag)
        idle = rig.consumer("idle")
        assert taken(idle, "q") == []
        look_at_all_counted(rig)
        assert ids(taken(idle, "q")) == ["a319"]

    def test_who_counts_is_killed(self, rig: Rig, fair: FairQueues) -> None:
        """Another one goes on when its claim has ended. Nothing is counted twice, or taken before."""
        publish(rig, "a", *numbered("a", 2 * MESSAGES_PER_CALL + 3))
        busy, k = rig.consumer("busy"), rig.store.keys("q")
        held: list[Delivery] = []
        while len(held) < 2 * MESSAGES_PER_CALL:
            held += taken(busy, "q", limit=2 * MESSAGES_PER_CALL - len(held))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kombu_redisdelay.broker.limits.count_keys", lambda store, queue: iter(()))
            fair.limit_key("q", "a", StoredKeyLimits(concurrency=1))
        killed = count_keys(rig.store, "q", "killed")
        next(killed)
        next(killed)
        assert rig.client.hlen(k.unacked_keys) == MESSAGES_PER_CALL
        finish(count_keys(rig.store, "q", "other"))
        assert rig.client.hlen(k.unacked_keys) == MESSAGES_PER_CALL
        assert taken(rig.consumer("idle"), "q") == []
        claim = k.claim("counting")
        assert rig.client.pttl(claim) <= COUNTS_FOR_MS
        rig.client.delete(claim)
        rig.ack(busy, "q", held.pop().tag)
        check_fair(rig.store, ["q"], {})
        look_at_all_counted(rig)
        assert rig.client.hgetall(k.unacked_by_key) == {b"a": str(len(held)).encode()}
        assert rig.client.hlen(k.unacked_keys) == len(held)
        # It was not killed after all.
        finish(killed)
        assert rig.client.hgetall(k.unacked_by_key) == {b"a": str(len(held)).encode()}
        assert not rig.client.hexists(k.limits, "counting")

    def test_what_an_earlier_release_has_left(self, rig: Rig, fair: FairQueues, held: Delivery) -> None:
        """Takes looked at such messages, which stood in a key of their own."""
        fair.limit_key("q", "a", StoredKeyLimits(concurrency=1))
        earlier = rig.key("q", "earlier")
        rig.client.zadd(earlier, {f"busy\x1e{held.tag}": 0})
        assert rig.ack(rig.consumer("busy"), "q", held.tag)
        check_fair(rig.store, ["q"], {})
        assert not rig.client.exists(earlier)
        assert ids(taken(rig.consumer("idle"), "q")) == ["a1"]


@pytest.mark.one_server
@pytest.mark.parametrize("name", ["active", "limited", "unacked-keys", "fair", "turns:0"])
@pytest.mark.parametrize("how", ["requeue", "give back", "later", "dead"])
def test_a_key_with_a_wrong_type_loses_no_message(rig: Rig, name: str, how: str) -> None:
    """It has left its consumer when its key is released."""
    fair = FairQueues(rig.store)
    fair.switch_on(["q"])
    fair.limit(["q"], StoredKeyLimits(concurrency=1))
    publish(rig, "k", "1", "2")
    me = rig.consumer()
    [delivery] = taken(me, "q")
    key = rig.key("q", name)
    rig.client.delete(key)
    rig.client.set(key, "of somebody else")
    with suppress(ResponseError):
        if how == "requeue":
            me.requeue("q", delivery.tag)
        elif how == "give back":
            me.give_back("q", delivery.tag)
        elif how == "later":
            park(me, delivery, "1", rig.database.now_ms() + HOUR)
        else:
            dead_letter(me, delivery, "why")
    rig.client.delete(key)
    read = {b"list": lambda each: rig.client.lrange(each, 0, -1), b"hash": rig.client.hvals}
    there = [
        stored for each in rig.all_keys() for stored in read.get(rig.client.type(each), lambda _: [])(each)
    ]
    assert sum(b'"id": "1"' in stored for stored in there) == 1
