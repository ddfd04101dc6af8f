"""Dead letters: what goes there, and how many are kept."""

from __future__ import annotations

import logging

import pytest

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.keys import DEAD
from kombu_redisdelay.broker import dead as module
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import REMOVE, REQUEUE
from tests.broker.rig import Rig, dead_letter, payload, take_out, taken, with_count


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
        assert dead(rig) == [f"1 3 rejected\n{text}"]

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
        assert rig.mend("q") == 125
        assert {letter.partition("\n")[2] for letter in dead(rig)} == {payload(n) for n in lost}
        assert len(rig.scheduled("q")) == 125
        assert "125 scheduled message(s)" in caplog.text

    def test_messages_that_say_when_they_are_due_are_scheduled_again(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        """They have lost their due time."""
        due_ms = rig.database.now_ms() + 60_000
        texts = [f'{{"redisdelay-due": {due_ms + n}, {payload(str(n))[1:]}' for n in range(3)]
        for n, text in enumerate(texts):
            rig.schedule("q", text, 60_000 + n, id=str(n))
        rig.schedule("q", payload("silent"), 60_000)
        # Too long for a time.
        rig.schedule("q", f'{{"redisdelay-due": {"9" * 16}, {payload("odd")[1:]}', 60_000)
        rig.client.delete(rig.store.keys("q").schedule)
        rig.use_up_token("q")
        assert rig.mend("q") == 5
        found = rig.client.zrange(rig.store.keys("q").schedule, 0, -1, withscores=True)
        assert found == [(b"%d" % n, due_ms + n) for n in range(3)]
        assert rig.tokens("q") == 1
        assert len(dead(rig)) == 2
        assert "3 scheduled message(s) of queue 'q' had lost their due time" in caplog.text
        assert rig.mend("q") == 0
        rig.database.advance(61_000)
        assert len(taken(rig.consumer(), "q")) == 3

    def test_nothing_is_said_of_a_schedule_in_order(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        rig.schedule("q", payload("1"), 60_000)
        assert rig.mend("q") == 0
        assert caplog.records == []


class TestGraveyard:
    """Looking at dead letters, and taking them out."""

    def bury(self, rig: Rig, *payloads: str, step: int = 0) -> None:
        me = rig.consumer(options=Options(dead_letter=True))
        for text in payloads:
            rig.put("q", text, step=step)
            [delivery] = taken(me, "q")
            dead_letter(me, delivery, " ".join(f"because of {text}".split()))

    def test_what_they_say(self, rig: Rig) -> None:
        before = rig.database.now_ms()
        self.bury(rig, with_count("{}", 0), "two\nlines", step=3)
        (first, _), (second, _) = Archive(rig.store, DEAD).walk("q")
        assert (first.payload, second.payload) == (b"{}", b"two\nlines")
        assert (second.queue, second.step, second.failures) == ("q", 3, 0)
        assert second.reason == "because of two lines"
        assert before <= first.since_ms <= second.since_ms <= rig.database.now_ms()

    def test_many_pages_the_oldest_first(self, rig: Rig) -> None:
        texts = [f"letter {number}" for number in range(50)]
        self.bury(rig, *texts)
        yard = Archive(rig.store, DEAD)
        found = (letter for letter, _ in yard.walk("q"))
        seen = [next(found).payload.decode() for _ in range(5)]
        # Those that come and go meanwhile shift nothing.
        self.bury(rig, "late")
        assert take_out(rig.store, "q", REMOVE, lambda letter: letter.payload == b"letter 0") == 1
        assert seen + [letter.payload.decode() for letter in found] == texts
        assert yard.counts(["q", "empty"]) == [50, 0]

    def test_a_page_is_bounded_by_bytes(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "LETTER_BYTES_PER_CALL", 5)
        self.bury(rig, *"abcd")
        assert take_out(rig.store, "q", REQUEUE) == 4
        assert rig.ready("q") == ["a", "b", "c", "d"]

    def test_requeue_goes_back_to_where_it_came_from_with_no_count(self, rig: Rig) -> None:
        text = payload("1")
        rig.put("q", with_count(text, 7), step=6)
        me = rig.consumer(options=Options(delivery_limit=8))
        [delivery] = taken(me, "q")
        me.requeue("q", delivery.tag)
        rig.put("q", "waiting", step=6)
        rig.use_up_token("q")
        assert take_out(rig.store, "q", REQUEUE, lambda letter: letter.failures == 8) == 1
        assert rig.ready("q", 6) == ["waiting", text]
        assert rig.dead("q") == []
        assert rig.tokens("q") == 1

    def test_only_what_is_wanted_over_many_pages(self, rig: Rig) -> None:
        self.bury(rig, *(f"{number:02}" for number in range(70)))
        yard = Archive(rig.store, DEAD)
        assert take_out(rig.store, "q", REQUEUE, lambda letter: int(letter.payload) % 3 == 0) == 24
        assert [int(text) for text in rig.ready("q")] == list(range(0, 70, 3))
        assert take_out(rig.store, "q", REMOVE, lambda letter: int(letter.payload) % 3 == 1) == 23
        assert [int(letter.payload) for letter, _ in yard.walk("q")] == list(range(2, 70, 3))

    def test_all_are_requeued_once(self, rig: Rig) -> None:
        """Also those of equal bytes, which died in the same millisecond."""
        me = rig.consumer()
        rig.put("q", *["same"] * 30)
        for delivery in taken(me, "q"):
            dead_letter(me, delivery, "why")
        assert take_out(rig.store, "q", REQUEUE) == 30
        assert rig.ready("q") == ["same"] * 30

    def test_drop_wakes_nobody(self, rig: Rig) -> None:
        self.bury(rig, "m")
        rig.use_up_token("q")
        assert take_out(rig.store, "q", REMOVE) == 1
        assert (rig.tokens("q"), rig.ready("q"), rig.dead("q")) == (0, [], [])

    def test_clear(self, rig: Rig) -> None:
        self.bury(rig, "a", "b")
        assert Archive(rig.store, DEAD).clear("q") == 2
        assert Archive(rig.store, DEAD).clear("q") == 0

    def test_queues_with_dead_letters_are_known(self, rig: Rig) -> None:
        rig.put("limit", payload("m"))
        rig.put("q", "m")
        me = rig.consumer(options=Options(delivery_limit=1))
        for delivery in taken(me, "limit"):
            me.requeue("limit", delivery.tag)
        for delivery in taken(me, "q"):
            dead_letter(me, delivery, "why")
        rig.client.hset(rig.key("swept", "messages"), "id", "0:m")
        rig.mend("swept")
        assert rig.store.queues() == ["limit", "q", "swept"]
