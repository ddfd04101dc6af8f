"""Dead letters: what goes there, and how many are kept."""

from __future__ import annotations

import logging

import pytest

from kombu_redisdelay.options import Options
from tests.broker.rig import Rig, payload, taken


def dead(rig: Rig) -> list[str]:
    """Dead letters without the time, the oldest first."""
    return [letter.split(" ", 1)[1] for letter in rig.dead("q")]


class TestDiscard:
    def test_drops_by_default(self, rig: Rig) -> None:
        rig.put("q", "m")
        me = rig.consumer(options=Options())
        [delivery] = taken(me, "q")
        assert me.discard("q", delivery.tag)
        assert (rig.unacked("q"), rig.ready("q"), dead(rig)) == ({}, [], [])

    def test_keeps_a_dead_letter_when_asked(self, rig: Rig) -> None:
        text = payload("1")
        rig.put("q", text, step=3)
        me = rig.consumer(options=Options(dead_letter=True))
        [delivery] = taken(me, "q")
        assert me.discard("q", delivery.tag)
        assert (rig.unacked("q"), rig.ready("q", 3)) == ({}, [])
        assert dead(rig) == [f"0 3 rejected\n{text}"]

    def test_what_is_not_held_is_left_alone(self, rig: Rig) -> None:
        assert not rig.consumer(options=Options(dead_letter=True)).discard("q", "1")
        assert dead(rig) == []


def test_the_latest_are_kept_and_the_rest_said(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.put("q", *(payload(str(n)) for n in range(5)))
    me = rig.consumer(options=Options(delivery_limit=1, dead_letter_limit=3))
    for delivery in taken(me, "q"):
        me.requeue("q", delivery.tag)
    assert [letter.partition("\n")[2] for letter in dead(rig)] == [payload(str(n)) for n in (2, 3, 4)]
    dropped = [record for record in caplog.records if "dead_letter_limit=3" in record.getMessage()]
    assert len(dropped) == 2
    assert {record.levelno for record in dropped} == {logging.ERROR}


class TestDamagedSchedule:
    def test_ids_without_a_message_are_skipped_and_said(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig.schedule("q", payload("kept"), -1000, id="kept")
        rig.client.zadd(rig.store.keys("q").schedule, {f"lost{n}": 1 for n in range(3)})
        [delivery] = taken(rig.consumer(), "q")
        assert delivery.payload.decode() == payload("kept")
        assert rig.client.zcard(rig.store.keys("q").schedule) == 0
        assert "3 scheduled id(s)" in caplog.text

    def test_messages_without_a_due_time_become_dead_letters(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        for n in range(250):
            rig.schedule("q", payload(str(n)), 60_000, id=str(n))
        lost = [str(n) for n in range(0, 250, 2)]
        rig.client.zrem(rig.store.keys("q").schedule, *lost)
        assert rig.consumer().sweep("q") == 125
        assert {letter.partition("\n")[2] for letter in dead(rig)} == {payload(n) for n in lost}
        assert len(rig.scheduled("q")) == 125
        assert "125 scheduled message(s)" in caplog.text

    def test_nothing_is_said_of_a_schedule_in_order(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        rig.schedule("q", payload("1"), 60_000)
        assert rig.consumer().sweep("q") == 0
        assert caplog.records == []
