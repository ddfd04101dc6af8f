"""Publishing, counting, purging, and what expires."""

from __future__ import annotations

from time import monotonic

import pytest

from kombu_redisdelay.broker import store
from kombu_redisdelay.broker.message import Due
from kombu_redisdelay.broker.schedule import Schedule
from tests.broker.database import Database
from tests.broker.rig import LEASE_MS, STEPS, Rig, park, payload, taken

HOUR = 3_600_000


class TestPut:
    def test_goes_where_stock_kombu_looks(self, rig: Rig) -> None:
        rig.put("q", "first", "second")
        rig.put("q", "urgent", step=3)
        ready = rig.database.prefix + ("{q}" if rig.store.server.has_slots else "q")
        assert rig.client.lrange(ready, 0, -1) == [b"second", b"first"]
        assert rig.client.lrange(ready + "\x06\x163", 0, -1) == [b"urgent"]

    def test_behind_a_prefix(self, database: Database) -> None:
        rig = Rig(database, prefix="app:")
        rig.put("q", "now")
        rig.schedule("q", "later", HOUR)
        assert set(rig.all_keys()) == {
            b"app:{q}" if rig.store.server.has_slots else b"app:q",
            b"app:redisdelay:known-queues",
            b"app:redisdelay:{q}:messages",
            b"app:redisdelay:{q}:schedule",
            b"app:redisdelay:{q}:wake",
        }


class TestSchedule:
    def test_waits_under_its_id_with_its_step(self, rig: Rig) -> None:
        before = rig.database.now_ms()
        rig.schedule("q", payload("a"), HOUR, id="a", step=6)
        assert rig.client.hgetall(rig.key("q", "messages")) == {b"a": b"6:" + payload("a").encode()}
        due_ms = rig.client.zscore(rig.key("q", "schedule"), "a")
        assert before + HOUR <= due_ms <= rig.database.now_ms() + HOUR
        assert rig.ready("q", 6) == []
        assert rig.store.scheduled("q") == 1

    @pytest.mark.parametrize("in_ms", [-HOUR, -1, 0])
    def test_a_time_that_has_come_is_ready(self, rig: Rig, in_ms: int) -> None:
        rig.schedule("q", "now", in_ms, step=3)
        assert rig.ready("q", 3) == ["now"]
        assert rig.scheduled("q") == []

    def test_a_delay_counts_from_the_servers_clock(self, rig: Rig) -> None:
        rig.store.run(rig.store.schedule("q", 0, "m", Due(delay_ms=HOUR), "m", "s"))
        rig.database.advance(HOUR - 10_000)
        assert taken(rig.consumer(), "q") == []
        rig.database.advance(10_000)
        assert len(taken(rig.consumer(), "q")) == 1

    @pytest.mark.parametrize(("at", "delay"), [(HOUR, 2 * HOUR), (2 * HOUR, HOUR)])
    def test_the_later_of_instant_and_delay_counts(self, rig: Rig, at: int, delay: int) -> None:
        when = Due(rig.database.now_ms() + at, delay)
        rig.store.run(rig.store.schedule("q", 0, "m", when, "m", "s"))
        rig.database.advance(2 * HOUR - 10_000)
        assert taken(rig.consumer(), "q") == []

    def test_the_year_9999(self, rig: Rig) -> None:
        rig.store.run(rig.store.schedule("q", 0, "m", Due(253402300799999), "m", "s"))
        assert rig.client.zscore(rig.key("q", "schedule"), "m") == 253402300799999

    def test_an_id_that_is_scheduled_already_keeps_both(self, rig: Rig) -> None:
        for number in range(4):
            rig.schedule("q", payload("same", n=number), HOUR, id="same")
        assert len(rig.scheduled("q")) == 4
        assert rig.client.zscore(rig.key("q", "schedule"), "same") is not None
        rig.database.advance(2 * HOUR)
        assert len(taken(rig.consumer(), "q")) == 4

    def test_two_of_one_publish_keep_both(self, rig: Rig) -> None:
        when = Due(rig.database.now_ms() + HOUR)
        for _ in range(3):
            rig.store.run(rig.store.schedule("q", 0, "m", when, "id"))
        assert rig.scheduled("q") == ["0:m"] * 3

    def test_queues_with_a_schedule_are_known(self, rig: Rig) -> None:
        rig.put("ready", "m")
        rig.schedule("later", "m", HOUR)
        rig.schedule("past", "m", -HOUR)
        assert rig.store.queues() == ["later", "past"]

    def test_they_are_noted_again_after_redis_lost_its_data(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig.schedule("q", "m", HOUR)
        rig.client.flushall()
        rig.schedule("q", "m", HOUR)
        assert rig.store.queues() == []
        monkeypatch.setattr(store, "monotonic", lambda: monotonic() + store.KNOWN_FOR)
        rig.schedule("q", "m", HOUR)
        assert rig.store.queues() == ["q"]


class TestCounting:
    def test_nothing_exists(self, rig: Rig) -> None:
        assert not rig.store.exists("q")
        assert rig.store.scheduled("q") == 0

    def test_any_priority_exists(self, rig: Rig) -> None:
        rig.put("q", "m", step=9)
        assert rig.store.exists("q")

    def test_scheduled_exists(self, rig: Rig) -> None:
        rig.schedule("q", "m", HOUR)
        assert rig.store.exists("q")

    def test_unacked_exists(self, rig: Rig) -> None:
        rig.put("q", "m")
        taken(rig.consumer(), "q")
        assert rig.store.exists("q")

    def test_another_queue_does_not(self, rig: Rig) -> None:
        rig.put("q2", "m")
        assert not rig.store.exists("q")


class TestPurge:
    def test_removes_ready_and_scheduled_alone(self, rig: Rig) -> None:
        rig.put("q", "unacked")
        rig.put("other", "m")
        consumer = rig.consumer()
        taken(consumer, "q")
        for step in STEPS:
            rig.put("q", "a", "b", step=step)
        rig.schedule("q", "c", HOUR)
        assert rig.store.purge("q") == 9
        assert not any(rig.ready("q", step) for step in STEPS)
        assert rig.scheduled("q") == []
        assert rig.tokens("q") == 0
        assert list(rig.unacked("q").values()) == ["0:unacked"]
        assert rig.ready("other") == ["m"]

    def test_nothing(self, rig: Rig) -> None:
        assert rig.store.purge("q") == 0


class TestExpires:
    """Every key of a queue with x-expires gets that time to live."""

    TTL = 50_000

    def ttls(self, rig: Rig) -> dict[str, int]:
        keys = (key.decode() for key in rig.all_keys("*q*"))
        return {key: rig.client.pttl(key) for key in keys if key != rig.known}

    def fill(self, rig: Rig) -> None:
        rig.store.expires_ms["q"] = self.TTL
        rig.put("q", "m", step=3)
        rig.schedule("q", "m", HOUR)
        rig.put("q", "m")

    def test_on_publishing(self, rig: Rig) -> None:
        self.fill(rig)
        ttls = self.ttls(rig)
        assert len(ttls) == 5
        assert all(0 < ttl <= self.TTL for ttl in ttls.values()), ttls

    def test_on_publishing_again_to_any_of_them(self, rig: Rig) -> None:
        self.fill(rig)
        for key in rig.all_keys("*q*"):
            rig.client.pexpire(key, 25_000)
        rig.put("q", "m")
        ttls = self.ttls(rig)
        assert all(ttl > 25_000 for ttl in ttls.values()), ttls

    def test_on_taking(self, rig: Rig) -> None:
        self.fill(rig)
        for key in rig.all_keys("*q*"):
            rig.client.persist(key)
        taken(rig.consumer(), "q", limit=1)
        ttls = self.ttls(rig)
        held = [ttls.pop(rig.key("q", "consumers")), ttls.pop(rig.key("q", "unacked:me"))]
        assert all(0 < ttl <= self.TTL for ttl in ttls.values()), ttls
        # What is held outlives the queue for as long as it takes to notice that a consumer is gone.
        assert all(self.TTL < ttl <= self.TTL + 2 * LEASE_MS for ttl in held)

    def test_on_giving_back(self, rig: Rig) -> None:
        rig.expires_ms["q"] = self.TTL
        rig.put("q", *(payload(str(n)) for n in range(4)))
        lost = rig.consumer("lost")
        taken(lost, "q", limit=2)
        me = rig.consumer()
        failed, parked = taken(me, "q", limit=2)
        assert not rig.client.exists(rig.store.keys("q").ready)
        me.requeue("q", failed.tag)
        park(me, parked, "id", rig.database.now_ms() + HOUR)
        rig.client.delete(rig.store.keys("q").ready)
        rig.end_lease("q", "lost")
        assert rig.recover("q") == 2
        ttls = self.ttls(rig)
        assert ttls.keys() >= {rig.store.keys("q").ready, rig.key("q", "schedule"), rig.key("q", "messages")}
        assert all(ttl > 0 for ttl in ttls.values()), ttls

    def test_duplicates_live_as_long_as_the_schedule(self, rig: Rig) -> None:
        self.fill(rig)
        rig.schedule("q", "m", HOUR)
        assert 0 < rig.client.pttl(rig.key("q", "duplicates")) <= self.TTL
        rig.client.pexpire(rig.key("q", "duplicates"), 25_000)
        consumer = rig.consumer()
        taken(consumer, "q", limit=0)
        rig.mend("q")
        assert rig.client.pttl(rig.key("q", "duplicates")) > 25_000

    def test_on_delivering_now(self, rig: Rig) -> None:
        rig.store.expires_ms["q"] = self.TTL
        rig.schedule("q", "m", HOUR)
        schedule = Schedule(rig.store)
        [found] = schedule.find("q", "m")
        assert schedule.reschedule(found, b"m", 0)
        assert 0 < rig.client.pttl(rig.store.keys("q").ready) <= self.TTL

    def test_without_x_expires_nothing_does(self, rig: Rig) -> None:
        rig.put("q", "m")
        rig.schedule("q", "m", HOUR)
        taken(rig.consumer(), "q")
        ttls = self.ttls(rig)
        # A history of its own accord.
        del ttls[rig.key("q", "history")]
        assert set(ttls.values()) == {-1}
