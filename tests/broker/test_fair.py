"""Fair queues, case by case. At random: test_fair_invariant.py."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from copy import copy
from itertools import pairwise

import pytest

from kombu_redisdelay.broker import fair_keys, takes
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery, Request
from kombu_redisdelay.broker.fair_key import FairKey, fair_key_of, key_of
from kombu_redisdelay.broker.fair_keys import (
    OFF,
    ON,
    PLAIN,
    KeyLimits,
    greatest_keys,
    iter_keys,
    iter_limited_keys,
    key_states,
    sorted_in,
)
from kombu_redisdelay.broker.fair_queues import FairQueues, check_fair
from kombu_redisdelay.broker.limits import LimitStore
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.server.scripts import TAKE
from kombu_redisdelay.broker.unique import DONE, DROPPED, Conflict, UniqueKey
from tests.broker.rig import Rig, payload, taken, takes_of
from tests.broker.test_fair_invariant import fair_payload, id_of
from tests.broker.test_mover import look, mover_of

HOUR = 3_600_000


@pytest.fixture
def fair(rig: Rig) -> FairQueues:
    fair = FairQueues(rig.store)
    fair.switch_on(["q"])
    return fair


def publish(rig: Rig, key: str, *ids: str, weight: float = 1, step: int = 0) -> None:
    rig.put("q", *(fair_payload(id, key, weight) for id in ids), step=step)


def numbered(key: str, count: int) -> list[str]:
    return [f"{key}{number}" for number in range(count)]


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [id_of(delivery.payload) for delivery in deliveries]


def keys_of(deliveries: Sequence[Delivery]) -> list[str]:
    return [key_of(delivery.payload).key for delivery in deliveries]


def take_all(me: Consumer, limit: int = 64) -> list[Delivery]:
    every: list[Delivery] = []
    while some := taken(me, "q", limit=limit):
        every += some
    return every


@pytest.mark.usefixtures("fair")
class TestTurns:
    def test_nobody_waits_for_the_backlog_of_another(self, rig: Rig) -> None:
        publish(rig, "noisy", *numbered("n", 300))
        me = rig.consumer()
        assert len(taken(me, "q", limit=10)) == 10
        publish(rig, "quiet", "q1")
        assert ids(taken(me, "q", limit=1)) == ["q1"]

    def test_first_in_first_out_within_a_key(self, rig: Rig) -> None:
        for number in range(5):
            publish(rig, "a", f"a{number}")
            publish(rig, "b", f"b{number}")
        got = ids(take_all(rig.consumer(), limit=3))
        assert [id for id in got if id[0] == "a"] == numbered("a", 5)
        assert [id for id in got if id[0] == "b"] == numbered("b", 5)

    def test_priority_comes_first(self, rig: Rig) -> None:
        publish(rig, "a", "low", step=9)
        publish(rig, "b", "high", step=3)
        assert ids(taken(rig.consumer(), "q")) == ["high", "low"]

    @pytest.mark.many_messages
    def test_shares_are_as_the_weights(self, rig: Rig) -> None:
        weights = {"a": 1, "b": 2, "c": 5, "d": 10}
        for key, weight in weights.items():
            publish(rig, key, *numbered(key, 60 * weight), weight=weight)
        me = rig.consumer()
        while rig.client.exists(rig.store.keys("q").ready):
            taken(me, "q", limit=0)
        counts: Counter[str] = Counter()
        for _ in range(90):
            counts.update(keys_of(taken(me, "q", limit=10)))
        for key, weight in weights.items():
            assert counts[key] == pytest.approx(900 * weight / 18, abs=2)

    def test_a_stream_of_newcomers_starves_nobody(self, rig: Rig) -> None:
        publish(rig, "old", *numbered("old", 20))
        me = rig.consumer()
        # After this, its turn is behind the clock.
        taken(me, "q", limit=2)
        got: list[str] = []
        for round in range(40):
            for number in range(10):
                publish(rig, f"new{round}-{number}", f"n{round}-{number}")
            got += keys_of(taken(me, "q", limit=5))
        assert got.count("old") >= 5

    def test_newcomers_are_served_as_they_come(self, rig: Rig) -> None:
        publish(rig, "busy", *numbered("busy", 100))
        me = rig.consumer()
        taken(me, "q", limit=3)
        letters = "zyxwvutsrqponmlkjihgfedcba"
        for letter in letters:
            publish(rig, letter, letter)
        served = "".join(keys_of(taken(me, "q", limit=26)))
        assert served.replace("busy", "") == letters

    def test_ever_new_keys_starve_no_newcomer(self, rig: Rig) -> None:
        me = rig.consumer()
        for number in range(10):
            publish(rig, f"guest{number:03}", f"guest{number}")
        taken(me, "q", limit=1)
        publish(rig, "zoe", "zoe")
        for number in range(10, 40):
            publish(rig, f"guest{number:03}", f"guest{number}")
            if "zoe" in keys_of(taken(me, "q", limit=1)):
                break
        assert number < 25

    @pytest.mark.parametrize("limit", [1, 3])
    def test_who_comes_behind_a_crowd_is_served_soon(self, rig: Rig, limit: int) -> None:
        publish(rig, "busy", *numbered("busy", 10))
        me = rig.consumer()
        taken(me, "q", limit=2)
        for number in range(100):
            publish(rig, f"crowd{number:03}", f"crowd{number}")
        taken(me, "q", limit=limit)
        publish(rig, "quiet", "quiet")
        got = [key for _ in range(3) for key in keys_of(taken(me, "q", limit=limit))]
        assert "quiet" in got[:3]

    def test_who_is_in_a_crowd_is_not_passed_by_ever_newer_keys(self, rig: Rig) -> None:
        me = rig.consumer()
        for number in range(40):
            publish(rig, f"guest{number:03}", f"guest{number}")
        publish(rig, "zoe", "zoe")
        for number in range(40, 200):
            publish(rig, f"guest{number:03}", f"guest{number}")
            if "zoe" in keys_of(taken(me, "q", limit=1)):
                break
        assert number - 40 <= 2 * 41

    @pytest.mark.parametrize("limit", [1, 7, 64])
    def test_each_of_a_crowd_is_served_once(self, rig: Rig, limit: int) -> None:
        for number in range(90):
            publish(rig, f"crowd{number}", f"crowd{number}")
        got = ids(take_all(rig.consumer(), limit=limit))
        assert sorted(got) == sorted(numbered("crowd", 90))

    def test_new_keys_get_no_more_than_those_that_wait(self, rig: Rig) -> None:
        for key in "abcdefgh":
            publish(rig, key, *numbered(key, 50))
        me = rig.consumer()
        taken(me, "q", limit=20)
        got = []
        for number in range(100):
            publish(rig, f"guest{number}", f"guest{number}")
            got += keys_of(taken(me, "q", limit=1))
        assert len([key for key in got if len(key) == 1]) >= 25

    def test_who_publishes_its_successor_starves_nobody(self, rig: Rig) -> None:
        publish(rig, "a", "a0")
        publish(rig, "b", *numbered("b", 20))
        me, got = rig.consumer(), ""
        for number in range(1, 20):
            [delivery] = taken(me, "q", limit=1)
            [key] = keys_of([delivery])
            got += key
            if key == "a":
                publish(rig, "a", f"a{number}")
        assert "bb" not in got[2:]
        assert "aa" not in got[2:]

    @pytest.mark.many_messages
    @pytest.mark.parametrize("limit", [1, 7])
    def test_the_clock_goes_back_before_its_numbers_are_too_great(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, limit: int
    ) -> None:
        low = copy(TAKE)
        low.text = TAKE.text.replace("2 ^ 52", "20000000").replace("128, 300, 200", "128, 300, 2")
        low.sha = "0" * 40
        monkeypatch.setattr(takes, "TAKE", low)
        for key in "abcdef":
            publish(rig, key, *numbered(key, 100))
        me, got, clocks = rig.consumer(), "", [0]
        while some := taken(me, "q", limit=limit):
            got += "".join(keys_of(some))
            clocks.append(int(rig.client.hget(rig.store.keys("q").fair, "clock:0") or 0))
        assert max(clocks) < 25_000_000
        assert sum(later < before for before, later in pairwise(clocks)) >= 4
        assert len(got) == 600
        # While they go back, those that have are served before the others.
        for at in range(60, 540, 60):
            counts = Counter(got[:at]).values()
            assert max(counts) - min(counts) <= 3 * limit

    def test_a_reply_that_was_lost_brings_the_same_again(self, rig: Rig) -> None:
        publish(rig, "a", "a0", "a1")
        me = rig.consumer()
        rig.exchange(me, Request(("q",), 1))
        assert ids(taken(me, "q", limit=1)) == ["a0"]
        assert ids(taken(me, "q", limit=1)) == ["a1"]

    def test_leaves_nothing(self, rig: Rig) -> None:
        publish(rig, "a", "a0", "a1")
        take_all(rig.consumer())
        left = {name.rpartition(b"}:")[2] for name in rig.all_keys() if b"redisdelay:{q}" in name}
        assert left <= {b"control", b"unacked:me", b"history", b"consumers", b"wake"}

    def test_a_large_message_is_taken_too(self, rig: Rig) -> None:
        large = fair_payload("large", "a").replace('"body": ""', f'"body": "{"x" * 600_000}"')
        rig.put("q", large)
        rig.schedule("q", large.replace('"large"', '"later"'), -1, id="later")
        me = rig.consumer()
        assert sorted(ids(take_all(me))) == ["large", "later"]

    def test_a_fair_queue_beside_a_plain_one(self, rig: Rig) -> None:
        publish(rig, "a", "a0", "a1", "a2")
        publish(rig, "b", "b0")
        rig.put(f"{rig.store.prefix}plain", payload("p0"), payload("p1"))
        got = ids(taken(rig.consumer(), "q", f"{rig.store.prefix}plain", limit=10))
        assert sorted(got) == ["a0", "a1", "a2", "b0", "p0", "p1"]


BAD = [
    '"x-key": 5',
    '"x-key": null',
    '"x-key": {"x-key": "a"}',
    '"x-key": "%s"' % ("a" * 65),
    '"x-key": "a\\u0000"',
    '"x-key": "a\\u0085"',
    '"x-key": "a\\"b"',
    '"x-key": "a\\\\b"',
    '"x-key": "\\ud800"',
    '"other": {"x-key": "a"}',
    '"x-key": "a" "b"',
    '"x-key": ' + "[" * 2000,
    '"other": "' + "o" * 3_000_000 + '", "x-key": "a"',
    '"other": "\\"x-key\\": \\"a\\""',
    '"other": "x"}, "body": "\\"headers\\": {\\"x-key\\": \\"a\\"}", "other": {"x-key": "a"',
    '"x-key": "a"}, "headers": {"x-key": 5',
    '"x-key": "a", "x-key": null',
]


@pytest.mark.usefixtures("fair")
class TestKeys:
    def stock(self, rig: Rig, headers: str) -> str:
        text = f'{{"body": "", "headers": {{"id": "1", {headers}}}, "properties": {{}}}}'
        rig.client.lpush(rig.store.keys("q").ready, text)
        return text

    @pytest.mark.parametrize("headers", BAD, ids=lambda text: text[:30])
    def test_what_cannot_be_a_key_is_none(self, rig: Rig, headers: str) -> None:
        text = self.stock(rig, headers)
        taken(rig.consumer(), "q", limit=0)
        assert rig.client.lrange(rig.store.keys("q").key_list(0, ""), 0, -1) == [text.encode()]

    @pytest.mark.parametrize("weight", ["0", "-1", "1e400", '"2"', "NaN", "1001", "null"])
    def test_what_cannot_be_a_weight_is_one(self, rig: Rig, weight: str) -> None:
        self.stock(rig, f'"x-key": "a", "x-key-weight": {weight}')
        [delivery] = taken(rig.consumer(), "q")
        assert key_of(delivery.payload) == (FairKey("a") if weight != "NaN" else key_of(delivery.payload))

    def test_what_a_stock_producer_pushes_gets_the_member(self, rig: Rig) -> None:
        rig.client.lpush(rig.store.keys("q").ready, fair_payload("1", "é", 2.5, stock=True))
        [delivery] = taken(rig.consumer(), "q")
        assert delivery.payload.startswith('{"redisdelay-key": "2.5 é", "body"'.encode())

    def test_a_member_may_be_escaped(self, rig: Rig) -> None:
        text = json.dumps({"redisdelay-due": 1, "redisdelay-key": "1 é", "body": "", "headers": {"id": "1"}})
        assert "\\u00e9" in text
        rig.put("q", text)
        taken(rig.consumer(), "q", limit=0)
        assert rig.client.llen(rig.store.keys("q").key_list(0, "é")) == 1

    @pytest.mark.parametrize("member", [b"1 \xc3", b"1 \xed\xa0\x80", b"1 \xc0\x80", b"1 " + b"a" * 65])
    def test_a_member_that_is_no_key_is_none(self, rig: Rig, member: bytes) -> None:
        rig.client.lpush(rig.store.keys("q").ready, b'{"redisdelay-key": "' + member + b'", "headers": {}}')
        taken(rig.consumer(), "q", limit=0)
        assert rig.client.llen(rig.store.keys("q").key_list(0, "")) == 1

    def test_what_is_no_message_has_no_key(self, rig: Rig) -> None:
        rig.client.lpush(rig.store.keys("q").ready, "", "{}", "[]", "nonsense", b"\xff")
        assert len(taken(rig.consumer(), "q")) == 5

    def test_of_headers(self) -> None:
        assert fair_key_of({}) is None
        assert fair_key_of({"x-key": "a", "x-key-weight": 2}) == FairKey("a", 2)
        for headers in (
            {"x-key": 5},
            {"x-key": "a" * 65},
            {"x-key": 'a"'},
            {"x-key": "a\\"},
            {"x-key": "a\n"},
            {"x-key": "\ud800"},
            {"x-key": "a", "x-key-weight": 0},
            {"x-key": "a", "x-key-weight": float("nan")},
            {"x-key": "a", "x-key-weight": "2"},
            {"x-key": "a", "x-key-weight": True},
            {"x-key-weight": 2},
        ):
            with pytest.raises(ValueError, match="header 'x-key"):
                fair_key_of(headers)


class TestLimits:
    def test_of_a_key_only_so_many_are_unacked(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], KeyLimits(concurrency=1))
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
        fair.limit(["q"], KeyLimits(concurrency=1))
        assert [(state.key, state.unacked) for state in sorted(iter_keys(rig.store, "q"))] == [
            ("a", 1),
            ("b", 1),
        ]
        assert taken(me, "q") == []
        for delivery in held:
            rig.ack(me, "q", delivery.tag)
        assert sorted(ids(taken(me, "q"))) == ["a1", "b1"]

    def test_nothing_is_taken_while_it_is_counted(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], KeyLimits(concurrency=1))
        publish(rig, "a", "a0")
        rig.client.hset(rig.store.keys("q").limits, "counting", "1")
        me = rig.consumer()
        assert taken(me, "q") == []
        assert rig.tokens("q") == 0
        # Somebody else ends what was begun.
        check_fair(rig.store, ["q"], {})
        assert rig.tokens("q") == 1
        assert ids(taken(me, "q")) == ["a0"]

    @pytest.mark.parametrize("how", ["returned", "failed", "later", "dead", "left", "lost"])
    def test_whatever_becomes_of_it_its_place_is_free(self, rig: Rig, fair: FairQueues, how: str) -> None:
        fair.limit(["q"], KeyLimits(concurrency=1))
        publish(rig, "a", "a0", "a1")
        me = rig.consumer()
        [delivery] = taken(me, "q")
        rig.use_up_token("q")
        if how == "returned":
            me.give_back("q", delivery.tag)
        elif how == "dead":
            me.make_dead("q", delivery.tag, "why")
        elif how == "left":
            me.leave_to_others("q", delivery.tag, "a0", "task")
            me.confirm_acks()
        elif how == "lost":
            rig.end_lease("q")
            rig.recover("q")
        else:
            me.requeue("q", delivery.tag, HOUR if how == "later" else None)
        assert rig.tokens("q") == 1
        comes_first = how in ("returned", "lost")
        assert ids(taken(rig.consumer("other"), "q")) == ["a0" if comes_first else "a1"]

    def test_a_place_that_another_program_has_freed_is_found(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], KeyLimits(concurrency=1))
        publish(rig, "a", "a0", "a1")
        me = rig.consumer()
        [delivery] = taken(me, "q")
        assert taken(me, "q") == []
        rig.client.hdel(rig.store.keys("q").unacked("me"), delivery.tag)
        assert taken(me, "q") == []
        check_fair(rig.store, ["q"], {})
        assert ids(taken(me, "q")) == ["a1"]

    def test_a_rate(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], KeyLimits(interval_us=HOUR * 1000.0, burst=2))
        publish(rig, "a", *numbered("a", 5))
        publish(rig, "b", "b0")
        me = rig.consumer()
        assert sorted(ids(taken(me, "q"))) == ["a0", "a1", "b0"]
        assert taken(me, "q") == []
        rig.database.advance(HOUR)
        assert ids(taken(me, "q")) == ["a2"]

    def test_a_rate_that_nobody_uses_any_more_is_forgotten(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], KeyLimits(interval_us=HOUR * 1000.0, burst=1))
        publish(rig, "a", "a0")
        taken(rig.consumer(), "q")
        tats = rig.key("q", "tats")
        check_fair(rig.store, ["q"], {})
        assert rig.client.zcard(tats) == 1
        rig.database.advance(HOUR)
        check_fair(rig.store, ["q"], {})
        assert not rig.client.exists(tats)

    def test_a_consumer_comes_when_a_rate_allows_it(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], KeyLimits(interval_us=HOUR * 1000.0, burst=1))
        publish(rig, "a", *numbered("a", 2))
        me = rig.consumer()
        taken(me, "q")
        assert me.take(Request(("q",), 5)).due["q"] == pytest.approx(HOUR / 1000, rel=0.01)

    def test_of_the_idle_consumers_one_comes(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], KeyLimits(interval_us=HOUR * 1000.0, burst=1))
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

    def test_a_watcher_that_has_messages_wakes_another_one(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], KeyLimits(interval_us=HOUR * 1000.0, burst=1))
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
        fair.limit(["q"], KeyLimits(interval_us=HOUR * 1000.0, burst=1))
        fair.limit_key("q", "b", KeyLimits(interval_us=HOUR * 500.0, burst=1))
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
        fair.limit(["q"], KeyLimits(concurrency=1))
        fair.limit_key("q", "a", KeyLimits(concurrency=2))
        for key in "ab":
            publish(rig, key, *numbered(key, 3))
        me = rig.consumer()
        assert sorted(ids(taken(me, "q"))) == ["a0", "a1", "b0"]
        fair.limit_key("q", "a", KeyLimits())
        assert taken(me, "q") == []
        assert [state.own for state in key_states(rig.store, "q", ["a"])] == [KeyLimits()]

    def test_a_key_is_paused(self, rig: Rig, fair: FairQueues) -> None:
        fair.pause_key("q", "a")
        publish(rig, "a", "a0")
        publish(rig, "b", "b0")
        me = rig.consumer()
        assert ids(taken(me, "q")) == ["b0"]
        [state] = key_states(rig.store, "q", ["a"])
        assert state.paused_ms is not None
        assert state.is_limited
        assert state.ready == {0: 1}
        rig.use_up_token("q")
        fair.resume_key("q", "a")
        assert rig.tokens("q") == 1
        assert ids(taken(me, "q")) == ["a0"]
        assert [*iter_keys(rig.store, "q")] == []

    def test_keys_at_a_limit_are_not_looked_at(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], KeyLimits(concurrency=1))
        for number in range(50):
            publish(rig, f"k{number}", f"{number}-0", f"{number}-1")
        me = rig.consumer()
        held = take_all(me)
        assert len(held) == 50
        assert rig.client.zcard(rig.store.keys("q").turns(0)) == 0
        assert rig.client.hlen(rig.store.keys("q").limited) == 50
        assert me.take(Request(("q",), 5)).more == {}

    def test_a_take_of_many_is_bounded(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], KeyLimits(concurrency=3))
        for number in range(100):
            publish(rig, f"k{number}", *numbered(f"{number}-", 3))
        me = rig.consumer()
        for _ in range(2):
            taken(me, "q", limit=0)
        took = me.take(Request(("q",), 500))
        assert len(took.deliveries) == 64
        assert took.more == {"q": 1}
        assert len(take_all(me, limit=500)) == 300 - 64

    def test_a_new_limit_lets_keys_go_on(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], KeyLimits(concurrency=1))
        publish(rig, "a", *numbered("a", 4))
        me = rig.consumer()
        assert len(take_all(me)) == 1
        fair.limit(["q"], KeyLimits(concurrency=3))
        assert len(take_all(me)) == 2
        fair.limit(["q"], KeyLimits())
        assert len(take_all(me)) == 1
        left = {name.rpartition(b"}:")[2] for name in rig.all_keys()}
        assert not left & {b"active", b"unacked-keys", b"limited"}


class TestSwitching:
    def test_messages_go_back_in_portions(self, rig: Rig, fair: FairQueues) -> None:
        publish(rig, "a", *numbered("a", 300))
        publish(rig, "b", *numbered("b", 3))
        me = rig.consumer()
        taken(me, "q", limit=0)
        taken(me, "q", limit=0)
        fair.switch_off(["q"])
        assert fair.states(["q"]) == [OFF]
        taken(me, "q", limit=0)
        assert 100 < len(rig.ready("q")) < 303
        while fair.states(["q"]) == [OFF]:
            taken(me, "q", limit=0)
        ids = [id_of(text) for text in rig.ready("q")]
        assert [id for id in ids if id[0] == "a"] == numbered("a", 300)
        assert [id for id in ids if id[0] == "b"] == numbered("b", 3)
        assert fair.states(["q"]) == [PLAIN]
        assert not rig.client.exists(rig.store.keys("q").limits)

    @pytest.mark.parametrize("again", [False, True])
    @pytest.mark.parametrize("keys", ["a", "abc"])
    def test_the_messages_of_a_key_stay_in_order(
        self, rig: Rig, fair: FairQueues, keys: str, again: bool
    ) -> None:
        me, got = rig.consumer(), []
        for key in keys:
            publish(rig, key, *numbered(key, 400))
        got += [id_of(each.payload.decode()) for each in taken(me, "q", limit=30)]
        fair.switch_off(["q"])
        # Some of them are moved back, and later ones come.
        got += [id_of(each.payload.decode()) for each in taken(me, "q", limit=30)]
        for key in keys:
            publish(rig, key, *numbered(key, 420)[400:])
        if again:
            fair.switch_on(["q"])
        while some := taken(me, "q", limit=50):
            got += [id_of(each.payload.decode()) for each in some]
        for key in keys:
            assert [id for id in got if id[0] == key] == numbered(key, 420)

    def test_a_plain_queue_is_not_switched_off(self, rig: Rig) -> None:
        FairQueues(rig.store).switch_off(["q"])
        assert not rig.client.exists(rig.store.keys("q").limits)

    def test_not_with_expires(self, rig: Rig) -> None:
        rig.expires_ms["q"] = HOUR
        with pytest.raises(ValueError, match="x-expires"):
            FairQueues(rig.store).switch_on(["q"])

    def test_a_pause_of_the_queue_ends_nothing(self, rig: Rig, fair: FairQueues) -> None:
        LimitStore(rig.store).pause(["q"])
        publish(rig, "a", "a0")
        me = rig.consumer()
        assert taken(me, "q") == []
        # It is sorted in all the same.
        assert rig.ready("q") == []
        LimitStore(rig.store).resume(["q"])
        assert fair.states(["q"]) == [ON]
        assert ids(taken(me, "q")) == ["a0"]


@pytest.mark.usefixtures("fair")
class TestStrays:
    """The steps of a queue were changed, and messages of a step that is no longer used are sorted in."""

    def sort_in(self, rig: Rig) -> Rig:
        before = Rig(rig.database, steps=(0, 5))
        publish(before, "a", *numbered("a", 300), step=5)
        publish(before, "b", "b0", step=5)
        me = before.consumer("before")
        for _ in range(2):
            taken(me, "q", limit=0)
        assert rig.client.hget(rig.store.keys("q").fair, "n:5") == b"301"
        return rig

    def test_are_taken(self, rig: Rig) -> None:
        me = self.sort_in(rig).consumer()
        got = ids(take_all(me))
        assert got.index("b0") < 150
        assert [id for id in got if id[0] == "a"] == numbered("a", 300)
        assert not rig.client.exists(rig.store.keys("q").fair)

    def test_are_found_by_who_has_no_room(self, rig: Rig) -> None:
        publish(rig, "a", "held")
        assert len(taken(rig.consumer(), "q")) == 1
        look(mover_of(self.sort_in(rig).store, "q"))
        assert rig.client.hget(rig.store.keys("q").fair, "n:0") == b"301"

    def test_at_a_limit_are_taken_later(self, rig: Rig, fair: FairQueues) -> None:
        self.sort_in(rig)
        fair.limit(["q"], KeyLimits(concurrency=1))
        held = taken(Rig(rig.database, steps=(0, 5)).consumer("before"), "q", limit=5)
        assert sorted(keys_of(held)) == ["a", "b"]
        me = rig.consumer()
        assert taken(me, "q") == []
        fair.limit(["q"], KeyLimits())
        assert len(take_all(me)) == 299


@pytest.mark.usefixtures("fair")
class TestOthers:
    def test_who_has_no_room_sorts_in(self, rig: Rig) -> None:
        publish(rig, "a", "held")
        taken(rig.consumer(), "q", limit=1)
        publish(rig, "a", *numbered("a", 250))
        look(mover_of(rig.store, "q"))
        assert rig.ready("q") == []
        assert rig.client.hget(rig.store.keys("q").fair, "n:0") == b"250"

    def test_without_consumers_the_length_of_the_list_tells_the_truth(self, rig: Rig) -> None:
        publish(rig, "a", "a0")
        look(mover_of(rig.store, "q"))
        assert len(rig.ready("q")) == 1

    @pytest.mark.parametrize("has_consumer", [True, False])
    def test_who_takes_nothing_moves_back(self, rig: Rig, fair: FairQueues, has_consumer: bool) -> None:
        me = rig.consumer()
        publish(rig, "a", "held")
        taken(me, "q", limit=1)
        publish(rig, "b", *numbered("b", 450))
        while rig.ready("q"):
            taken(me, "q", limit=0)
        if not has_consumer:
            rig.client.delete(rig.store.keys("q").consumers)
        fair.switch_off(["q"])
        look(mover_of(rig.store, "q"))
        assert fair.states(["q"]) == [PLAIN]
        assert len(rig.ready("q")) == 450

    def test_a_unique_key_is_held_by_what_is_sorted_in(self, rig: Rig) -> None:
        unique = UniqueKey("u", DONE)
        assert rig.publish_unique("q", "1", unique) is None
        me = rig.consumer()
        taken(me, "q", limit=0)
        assert rig.ready("q") == []
        assert rig.publish_unique("q", "2", unique) == Conflict(DROPPED, "1")

    def test_a_unique_key_behind_a_key(self, rig: Rig) -> None:
        member = '"redisdelay-unique": ["d", "1", "u"]'
        text = fair_payload("1", "a").replace('"body"', f'{member}, "body"')
        rig.put("q", text)
        rig.client.hset(rig.key("q", "unique"), "u", f"r0 {rig.database.now_ms()} 0 1")
        taken(rig.consumer(), "q")
        assert rig.client.hkeys(rig.key("q", "running")) == [b"u"]


@pytest.mark.usefixtures("fair")
class TestOperators:
    def sort_in(self, rig: Rig) -> ReadyLists:
        publish(rig, "a", *numbered("a", 3))
        publish(rig, "b", "b0", step=3)
        taken(rig.consumer(), "q", limit=0)
        publish(rig, "c", "c0")
        return ReadyLists(rig.store)

    def test_counts_and_lists(self, rig: Rig) -> None:
        ready = self.sort_in(rig)
        assert ready.counts(["q"]) == [5]
        found = list(ready.iter("q"))
        assert [(id_of(each.payload), each.key) for each in found] == [
            *[("a0", "a"), ("a1", "a"), ("a2", "a"), ("c0", None), ("b0", "b")]
        ]
        assert [each.position for each in found] == [0, 1, 2, 3, 4]
        # Lists of other keys are not looked at. Who has pushed what is not sorted in is seen later.
        of_b = [(id_of(each.payload), each.position) for each in ready.iter("q", is_key="b".__eq__)]
        assert of_b == [("c0", 3), ("b0", 4)]

    def test_removes(self, rig: Rig, fair: FairQueues) -> None:
        ready = self.sort_in(rig)
        found = list(ready.iter("q"))
        assert list(ready.remove_all("q", [found[1], found[3], found[4]])) == [found[1], found[3], found[4]]
        assert sum(sorted_in(rig.store, ["q"])[0].values()) == 2
        assert ids(taken(rig.consumer(), "q")) == ["a0", "a2"]

    def test_schedules(self, rig: Rig, fair: FairQueues) -> None:
        ready = self.sort_in(rig)
        due_ms = rig.database.now_ms() + HOUR
        moved = list(ready.schedule_all("q", ready.iter("q"), lambda each: (id_of(each.payload), due_ms)))
        assert len(moved) == len(rig.scheduled("q")) == 5
        assert sum(sorted_in(rig.store, ["q"])[0].values()) == 0
        rig.database.advance(HOUR + 1000)
        assert sorted(keys_of(take_all(rig.consumer()))) == ["a", "a", "a", "b", "c"]

    def test_purges(self, rig: Rig, fair: FairQueues) -> None:
        self.sort_in(rig)
        fair.pause_key("q", "a")
        taken(rig.consumer(), "q", limit=1)
        assert rig.store.purge("q") == 4
        assert not rig.store.exists("other")
        assert rig.all_keys("*key:*") == rig.all_keys("*turns:*") == rig.all_keys("*:limited") == []


@pytest.mark.parametrize("is_limited", [False, True])
def test_the_greatest_keys(
    rig: Rig, fair: FairQueues, monkeypatch: pytest.MonkeyPatch, is_limited: bool
) -> None:
    monkeypatch.setattr(fair_keys, "KEYS_PER_PAGE", 10)
    for number in range(200):
        publish(rig, f"k{number}", *numbered(f"k{number}-", 1 + number % 3))
    publish(rig, "great", *numbered("great", 3))
    # In both steps together, it has most.
    publish(rig, "great", *numbered("great3-", 2), step=3)
    publish(rig, "few", *numbered("few3-", 4), step=3)
    me = rig.consumer()
    _one = taken(me, "q", limit=1)
    while rig.client.llen("q") or rig.client.llen(rig.store.keys("q").ready_at(3)):
        _more = taken(me, "q", limit=1)
    if is_limited:
        fair.limit(["q"], KeyLimits(concurrency=1))
        _none = take_all(me)
        assert rig.client.hlen(rig.store.keys("q").limited) > 100
    counts = {state.key: sum(state.ready.values()) for state in iter_keys(rig.store, "q")}
    expected = sorted(counts, key=lambda key: (-counts[key], key.encode()))
    assert greatest_keys(rig.store, "q", 50) == expected[:50]
    assert greatest_keys(rig.store, "q", 1000) == [key for key in expected if counts[key]]


def test_the_keys_that_are_limited(rig: Rig, fair: FairQueues) -> None:
    for key in "abc":
        publish(rig, key, key)
    fair.pause_key("q", "b")
    fair.limit_key("q", "x", KeyLimits(concurrency=1))
    assert keys_of(take_all(rig.consumer())) == ["a", "c"]
    found = {
        state.key: (state.paused_ms is not None, state.is_limited)
        for state in iter_limited_keys(rig.store, "q")
    }
    assert found == {"b": (True, True), "x": (False, False)}
