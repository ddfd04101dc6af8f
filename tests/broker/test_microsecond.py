"""A message is due at its microsecond: never before it, and not at the end of its millisecond."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kombu_redisdelay.broker.delivery import Request
from kombu_redisdelay.broker.message import Due, from_ms
from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.operations.stats import queue_stats
from tests.broker.database import FAKE, FakeDatabase
from tests.broker.database import database as open_database
from tests.broker.rig import Rig, park, taken, texts

HOUR = 3_600_000

#: In the year 2100.
DUE_MS = 4102444800000.123


@pytest.fixture
def still_rig() -> Iterator[Rig]:
    """One whose clock stands still."""
    with open_database(FAKE) as database:
        yield Rig(database)


def schedule_at(rig: Rig, due_us: int) -> None:
    name = str(due_us)
    rig.store.run(rig.store.schedule("q", 0, name, Due(due_us / 1000), name))


def test_is_taken_when_it_is_due(rig: Rig) -> None:
    # Later than the last one is scheduled.
    first_us = rig.database.now_us() + (1_000 if isinstance(rig.database, FakeDatabase) else 50_000)
    all_us = [first_us + 211 * number for number in range(50)]
    for due_us in all_us:
        schedule_at(rig, due_us)
    consumer = rig.consumer()
    came: set[str] = set()
    while len(came) < len(all_us):
        rig.database.tick()
        reply = consumer.take(Request(["q"], 500))
        now_us = round(reply.now_ms * 1000)
        came.update(texts(reply.deliveries))
        assert came == {str(due_us) for due_us in all_us if due_us <= now_us}
        if reply.due:
            remaining_us = min(due_us for due_us in all_us if due_us > now_us) - now_us
            assert remaining_us <= round(reply.due["q"] * 1_000_000) <= remaining_us + 1


@pytest.mark.once
@pytest.mark.parametrize("late_us", [-1, 0, 1])
class TestWithinAMicrosecond:
    """By a clock that stands still."""

    def test_published(self, still_rig: Rig, late_us: int) -> None:
        schedule_at(still_rig, still_rig.database.now_us() - late_us)
        assert len(still_rig.scheduled("q")) == (late_us < 0)
        assert len(still_rig.ready("q")) == (late_us >= 0)

    def test_rescheduled(self, still_rig: Rig, late_us: int) -> None:
        schedule = Schedule(still_rig.store)
        still_rig.schedule("q", "m", HOUR)
        [found] = schedule.find("q", "m")
        assert still_rig.store.now_ms() == still_rig.database.now_us() / 1000
        due_ms = (still_rig.database.now_us() - late_us) / 1000
        assert schedule.reschedule(found, found.payload, due_ms)
        assert len(still_rig.scheduled("q")) == (late_us < 0)
        assert len(still_rig.ready("q")) == (late_us >= 0)

    def test_counted(self, still_rig: Rig, late_us: int) -> None:
        due_ms = (still_rig.database.now_us() - late_us) / 1000
        still_rig.client.zadd(still_rig.key("q", "schedule"), {"m": due_ms})
        [stats] = queue_stats(still_rig.store, ["q"])
        assert stats.overdue == (late_us >= 0)
        assert stats.next_due == from_ms(due_ms)
        assert stats.lateness == pytest.approx(max(0, late_us) / 1_000_000, abs=1e-6)


class TestScore:
    def test_of_what_is_published(self, rig: Rig) -> None:
        rig.store.run(rig.store.schedule("q", 0, "m", Due(DUE_MS), "m"))
        assert rig.client.zscore(rig.key("q", "schedule"), "m") == DUE_MS

    def test_of_a_delay(self, rig: Rig) -> None:
        before_us = rig.database.now_us()
        rig.store.run(rig.store.schedule("q", 0, "m", Due(delay_ms=HOUR + 0.25), "m"))
        delay_us = HOUR * 1000 + 250
        due_us = round(rig.client.zscore(rig.key("q", "schedule"), "m") * 1000)
        assert before_us + delay_us <= due_us <= rig.database.now_us() + delay_us

    def test_of_what_is_rescheduled(self, rig: Rig) -> None:
        schedule = Schedule(rig.store)
        rig.schedule("q", "m", HOUR)
        [found] = schedule.find("q", "m")
        assert schedule.reschedule(found, found.payload, DUE_MS)
        assert rig.client.zscore(rig.key("q", "schedule"), "m") == DUE_MS
        [found] = schedule.find("q", "m")
        assert found.due_ms == DUE_MS

    def test_of_what_is_parked(self, rig: Rig) -> None:
        rig.put("q", "m")
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        park(consumer, delivery, "m", DUE_MS)
        assert rig.client.zscore(rig.key("q", "schedule"), "m") == DUE_MS


def test_leases_are_in_whole_milliseconds(rig: Rig) -> None:
    rig.put("q", "m")
    taken(rig.consumer(), "q")
    assert rig.client.zscore(rig.key("q", "consumers"), "me").is_integer()
