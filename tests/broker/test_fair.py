"""Fair queues, case by case: the order, and what an operator sees of it.

At random: test_fair_invariant.py.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from itertools import pairwise

import pytest

from kombu_redisdelay.broker import fair_keys, ready, takes
from kombu_redisdelay.broker.delivery import Request
from kombu_redisdelay.broker.fair_keys import (
    StoredKeyLimits,
    greatest_keys,
    iter_keys,
    some_keys,
    sorted_by_key,
)
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.server.scripts import TAKE
from tests.broker.fair_kit import ids, keys_of, numbered, publish, take_all
from tests.broker.rig import Rig, again_at, payload, taken
from tests.broker.test_fair_invariant import fair_payload, id_of

HOUR = 3_600_000


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
        low.text = TAKE.text.replace("2 ^ 52", "20000000").replace("80, 300, 200", "80, 300, 2")
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

    def test_an_empty_key_leaves_with_its_next_turn(self, rig: Rig) -> None:
        publish(rig, "a", "a0")
        publish(rig, "b", *numbered("b", 9))
        me = rig.consumer()
        assert set(keys_of(taken(me, "q", limit=2))) == {"a", "b"}
        assert len(taken(me, "q", limit=2)) == 2
        assert rig.client.zrange(rig.store.keys("q").turns(0), 0, -1) == [b"b"]

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


@pytest.mark.usefixtures("fair")
class TestOperators:
    def sort_by_key(self, rig: Rig) -> ReadyLists:
        publish(rig, "a", *numbered("a", 3))
        publish(rig, "b", "b0", step=3)
        taken(rig.consumer(), "q", limit=0)
        publish(rig, "c", "c0")
        return ReadyLists(rig.store)

    def test_counts_and_lists(self, rig: Rig) -> None:
        lists = self.sort_by_key(rig)
        assert lists.counts(["q"]) == [5]
        found = list(lists.iter("q"))
        assert [(id_of(each.payload), each.key) for each in found] == [
            *[("a0", "a"), ("a1", "a"), ("a2", "a"), ("c0", None), ("b0", "b")]
        ]
        assert [each.position for each in found] == [0, 1, 2, 3, 4]
        # Lists of other keys are not looked at. Who has pushed what is not sorted by key is seen later.
        of_b = [(id_of(each.payload), each.position) for each in lists.iter("q", is_key="b".__eq__)]
        assert of_b == [("c0", 3), ("b0", 4)]

    @pytest.mark.many_messages
    def test_lists_of_many_keys(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """Some are begun together, and one has more than a page."""
        monkeypatch.setattr(ready, "LISTS_PER_CALL", 2)
        for key, count in (("a", 1), ("b", MESSAGES_PER_CALL + 1), ("c", 2), ("d", 1), ("e", 1)):
            publish(rig, key, *numbered(key, count))
        while rig.client.llen(rig.store.keys("q").ready):
            taken(rig.consumer(), "q", limit=0)
        found = list(ReadyLists(rig.store).iter("q"))
        assert [each.position for each in found] == list(range(MESSAGES_PER_CALL + 6))
        for key in "abcde":
            of_key = [id_of(each.payload) for each in found if each.key == key]
            assert of_key == numbered(key, len(of_key))
        assert [each.key for each in ReadyLists(rig.store).iter("q", is_key="ce".__contains__)] == [*"cce"]

    def test_removes(self, rig: Rig, fair: FairQueues) -> None:
        lists = self.sort_by_key(rig)
        found = list(lists.iter("q"))
        assert list(lists.remove_all("q", [found[1], found[3], found[4]])) == [found[1], found[3], found[4]]
        assert sum(sorted_by_key(rig.store, ["q"])[0].values()) == 2
        assert ids(taken(rig.consumer(), "q")) == ["a0", "a2"]

    @pytest.mark.many_messages
    def test_removes_what_many_keys_have_in_few_round_trips(self, rig: Rig, fair: FairQueues) -> None:
        for number in range(150):
            publish(rig, f"k{number}", f"m{number}")
        while rig.client.llen(rig.store.keys("q").ready):
            taken(rig.consumer(), "q", limit=0)
        lists = ReadyLists(rig.store)
        found = list(lists.iter("q"))
        before = rig.client.info("stats")["total_reads_processed"]
        assert list(lists.remove_all("q", found)) == found
        assert rig.client.info("stats")["total_reads_processed"] - before < 100
        assert list(lists.iter("q")) == []

    def test_schedules(self, rig: Rig, fair: FairQueues) -> None:
        lists = self.sort_by_key(rig)
        due_ms = rig.database.now_ms() + HOUR
        moved = list(lists.schedule_all("q", lists.iter("q"), again_at(due_ms)))
        assert len(moved) == len(rig.scheduled("q")) == 5
        assert sum(sorted_by_key(rig.store, ["q"])[0].values()) == 0
        rig.database.advance(HOUR + 1000)
        assert sorted(keys_of(take_all(rig.consumer()))) == ["a", "a", "a", "b", "c"]

    def test_purges(self, rig: Rig, fair: FairQueues) -> None:
        self.sort_by_key(rig)
        fair.pause_key("q", "a")
        taken(rig.consumer(), "q", limit=1)
        assert rig.store.purge("q") == 4
        assert not rig.store.exists("other")
        assert rig.all_keys("*::*") == rig.all_keys("*turns:*") == rig.all_keys("*:limited") == []


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
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        _none = take_all(me)
        assert rig.client.hlen(rig.store.keys("q").limited) > 100
    counts = {state.key: sum(state.ready.values()) for state in iter_keys(rig.store, "q")}
    expected = sorted(counts, key=lambda key: (-counts[key], key.encode()))
    assert greatest_keys(rig.store, "q", 50) == expected[:50]
    assert greatest_keys(rig.store, "q", 1000) == [key for key in expected if counts[key]]
    some = some_keys(rig.store, "q", 50)
    assert set(some) < set(counts)
    assert 20 < len(some) < 80
