"""Taking: in which order, how many, and what is migrated with it."""

from __future__ import annotations

import pytest

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Request
from tests.broker.rig import STEPS, Rig, payload, taken, texts

HOUR = 3_600_000


class TestOrder:
    def test_first_in_first_out(self, rig: Rig) -> None:
        rig.put("q", *(str(n) for n in range(100)))
        consumer = rig.consumer()
        assert texts(taken(consumer, "q", limit=64)) == [str(n) for n in range(64)]
        assert texts(taken(consumer, "q", limit=64)) == [str(n) for n in range(64, 100)]

    def test_due_order_whatever_the_order_of_publication(self, rig: Rig) -> None:
        for minutes in (5, 1, 4, 2, 3):
            rig.schedule("q", f"due {minutes}", minutes * 60_000)
        rig.database.advance(3 * 60_000 + 1000)
        assert texts(taken(rig.consumer(), "q")) == ["due 1", "due 2", "due 3"]
        assert rig.scheduled("q") == ["0:due 4", "0:due 5"]

    def test_due_messages_queue_up_behind_what_is_ready(self, rig: Rig) -> None:
        rig.schedule("q", "due", 60_000)
        rig.put("q", "ready")
        rig.database.advance(HOUR)
        assert texts(taken(rig.consumer(), "q")) == ["ready", "due"]

    def test_due_messages_keep_their_priority(self, rig: Rig) -> None:
        rig.schedule("q", "low", 1000, step=9)
        rig.schedule("q", "high", 2000, step=0)
        rig.database.advance(HOUR)
        assert texts(taken(rig.consumer(), "q")) == ["high", "low"]

    @pytest.mark.parametrize("in_turn", [True, False])
    def test_priority_goes_across_queues(self, rig: Rig, in_turn: bool) -> None:
        rig.put("a", "a9", step=9)
        rig.put("a", "a3", step=3)
        rig.put("b", "b0", step=0)
        rig.put("b", "b6", step=6)
        assert texts(taken(rig.consumer(), "a", "b", in_turn=in_turn)) == ["b0", "a3", "b6", "a9"]

    def test_in_turn_is_fair(self, rig: Rig) -> None:
        rig.put("a", *(f"a{n}" for n in range(10)))
        rig.put("b", "b0", "b1")
        rig.put("c", "c0")
        assert texts(taken(rig.consumer(), "a", "b", "c", limit=8)) == [
            *("a0", "b0", "c0"),
            *("a1", "b1"),
            *("a2", "a3", "a4"),
        ]

    def test_strictly_is_the_first_queue_until_it_is_empty(self, rig: Rig) -> None:
        rig.put("a", "a0", "a1")
        rig.put("b", "b0", "b1")
        order = texts(taken(rig.consumer(), "b", "a", limit=3, in_turn=False))
        assert order == ["b0", "b1", "a0"]


class TestDelivery:
    def test_says_where_it_came_from(self, rig: Rig) -> None:
        rig.put("a", "m", step=6)
        rig.put("b", "n", step=9)
        first, second = taken(rig.consumer(), "a", "b")
        assert (first.queue, first.step, first.payload, first.needs_ack) == ("a", 6, b"m", True)
        assert (second.queue, second.step, second.payload, second.needs_ack) == ("b", 9, b"n", True)
        assert rig.unacked("a") == {first.tag: "6:m"}
        assert rig.unacked("b") == {second.tag: "9:n"}

    def test_tags_are_unique_for_the_consumer(self, rig: Rig) -> None:
        rig.put("a", *map(str, range(20)))
        rig.put("b", *map(str, range(20)))
        consumer = rig.consumer()
        tags = [d.tag for _ in range(8) for d in taken(consumer, "a", "b", limit=5)]
        assert len(set(tags)) == 40

    def test_two_consumers_share(self, rig: Rig) -> None:
        rig.put("q", "0", "1", "2")
        one, two = rig.consumer("one"), rig.consumer("two")
        assert texts(taken(one, "q", limit=1)) == ["0"]
        assert texts(taken(two, "q", limit=1)) == ["1"]
        assert list(rig.unacked("q", "one").values()) == ["0:0"]
        assert list(rig.unacked("q", "two").values()) == ["0:1"]

    def test_any_bytes(self, rig: Rig) -> None:
        anything = bytes(range(256)) + b"\r\n:0:" + bytes(10)
        rig.client.lpush(rig.store.keys("q").ready, anything)
        [delivery] = taken(rig.consumer(), "q")
        assert delivery.payload == anything

    def test_lease_is_registered_by_taking(self, rig: Rig) -> None:
        consumer = rig.consumer()
        taken(consumer, "q")
        assert rig.client.zrange(rig.key("q", "consumers"), 0, -1) == []
        rig.put("q", "m")
        before = rig.database.now_ms()
        taken(consumer, "q")
        assert rig.client.zscore(rig.key("q", "consumers"), "me") >= before + 60_000


class TestNoAck:
    def test_is_held_nowhere(self, rig: Rig) -> None:
        rig.put("q", "m")
        [delivery] = taken(rig.consumer(), "q", no_ack={"q"})
        assert not delivery.needs_ack
        assert rig.unacked("q") == {}
        assert rig.all_keys() == []

    def test_is_said_for_each_queue(self, rig: Rig) -> None:
        rig.put("a", "m")
        rig.put("b", "n")
        first, second = taken(rig.consumer(), "a", "b", no_ack={"b"})
        assert (first.needs_ack, second.needs_ack) == (True, False)
        assert rig.unacked("a") == {first.tag: "0:m"}
        assert rig.unacked("b") == {}


class TestCredit:
    def test_no_more_than_asked_for(self, rig: Rig) -> None:
        rig.put("a", *map(str, range(10)))
        rig.put("b", *map(str, range(10)))
        consumer = rig.consumer()
        for limit in (1, 2, 7):
            assert len(taken(consumer, "a", "b", limit=limit)) == limit
        assert len(rig.ready("a")) + len(rig.ready("b")) == 10

    def test_none_only_migrates(self, rig: Rig) -> None:
        rig.schedule("q", "m", 1000, step=3)
        rig.database.advance(HOUR)
        assert taken(rig.consumer(), "q", limit=0) == []
        assert rig.ready("q", 3) == ["m"]
        assert rig.scheduled("q") == []

    def test_steps_of_the_application(self, rig: Rig) -> None:
        custom = Rig(rig.database, steps=(0, 5))
        custom.put("q", "low", step=5)
        custom.put("q", "high", step=0)
        custom.put("q", "of another application", step=3)
        assert texts(taken(custom.consumer(), "q")) == ["high", "low"]


class TestBounds:
    """One call moves 200 messages or about a quarter of a MiB at most."""

    LARGE = 64 * 1024

    def test_migrates_200(self, rig: Rig) -> None:
        for n in range(300):
            rig.schedule("q", f"{n:03}", 1000 + n)
        rig.database.advance(HOUR)
        assert taken(rig.consumer(), "q", limit=0) == []
        assert rig.ready("q") == [f"{n:03}" for n in range(200)]
        reply = rig.consumer().take(Request(["q"], 0, in_turn=True))
        assert len(rig.ready("q")) == 300
        assert reply.due == {}

    def test_says_at_once_when_more_is_due(self, rig: Rig) -> None:
        for n in range(201):
            rig.schedule("q", str(n), 1000)
        rig.database.advance(HOUR)
        assert rig.consumer().take(Request(["q"], 0, in_turn=True)).due == {"q": 0}

    def test_migrates_200_from_all_queues_together(self, rig: Rig) -> None:
        queues = ("a", "b", "c")
        for queue in queues:
            for n in range(120):
                rig.schedule(queue, str(n), 1000)
        rig.database.advance(HOUR)
        taken(rig.consumer(), *queues, limit=0)
        assert sum(len(rig.ready(queue)) for queue in queues) == 200

    def test_migrates_a_quarter_of_a_mib(self, rig: Rig) -> None:
        for n in range(7):
            rig.schedule("q", str(n) * self.LARGE, 1000 + n)
        rig.database.advance(HOUR)
        taken(rig.consumer(), "q", limit=0)
        assert [text[0] for text in rig.ready("q")] == ["0", "1", "2", "3"]

    def test_migrates_a_quarter_of_a_mib_from_all_queues_together(self, rig: Rig) -> None:
        queues = ("a", "b", "c")
        for queue in queues:
            for n in range(4):
                rig.schedule(queue, str(n) * self.LARGE, 1000)
        rig.database.advance(HOUR)
        taken(rig.consumer(), *queues, limit=0)
        assert sum(len(rig.ready(queue)) for queue in queues) <= 5

    def test_takes_a_quarter_of_a_mib(self, rig: Rig) -> None:
        rig.put("q", *(str(n) * self.LARGE for n in range(7)))
        consumer = rig.consumer()
        assert len(taken(consumer, "q", limit=64)) == 4
        assert len(taken(consumer, "q", limit=64)) == 3

    def test_a_message_larger_than_that_is_still_taken(self, rig: Rig) -> None:
        rig.schedule("q", "x" * 5 * self.LARGE, 1000)
        rig.database.advance(HOUR)
        assert len(taken(rig.consumer(), "q")) == 1

    def test_takes_500(self, rig: Rig) -> None:
        rig.put("q", *map(str, range(600)))
        deliveries = taken(rig.consumer(), "q", limit=500)
        assert texts(deliveries) == [str(n) for n in range(500)]
        assert len(rig.unacked("q")) == 500


class TestNextDue:
    def test_nothing_is_scheduled(self, rig: Rig) -> None:
        rig.put("q", "m")
        assert rig.consumer().take(Request(["q"], 1, in_turn=True)).due == {}

    def test_is_a_remainder_for_each_queue(self, rig: Rig) -> None:
        rig.schedule("a", "m", 90_000)
        rig.schedule("b", "m", 30_000)
        rig.schedule("b", "n", 60_000)
        rig.put("c", "m")
        due = rig.consumer().take(Request(["a", "b", "c"], 1, in_turn=True)).due
        assert list(due) == ["a", "b"]
        assert 85 < due["a"] <= 90
        assert 25 < due["b"] <= 30

    def test_of_a_due_time_that_never_comes(self, rig: Rig) -> None:
        rig.schedule("q", "m", 90_000)
        rig.client.zadd(rig.store.keys("q").schedule, {"m": "inf"})
        assert "q" not in rig.consumer().take(Request(["q"], 1, in_turn=True)).due

    def test_tells_the_servers_time(self, rig: Rig) -> None:
        before = rig.database.now_us()
        now_ms = rig.consumer().take(Request(["q"], 1, in_turn=True)).now_ms
        assert before <= round(now_ms * 1000) <= rig.database.now_us()


class TestLostReply:
    """The next take returns what the lost one took, and takes nothing."""

    def lose(self, rig: Rig, consumer: Consumer, *queues: str, limit: int) -> None:
        rig.exchange(consumer, Request(queues, limit))

    def test_same_messages_again(self, rig: Rig) -> None:
        rig.put("a", "a0", "a1", "a2")
        rig.put("b", "b0", "b1", step=3)
        me = rig.consumer()
        self.lose(rig, me, "a", "b", limit=4)
        held = {**rig.unacked("a"), **rig.unacked("b")}
        assert {d.tag: f"{d.step}:{d.payload.decode()}" for d in taken(me, "a", "b", limit=4)} == held
        assert {**rig.unacked("a"), **rig.unacked("b")} == held
        assert rig.ready("b", 3) == ["b1"]

    def test_then_goes_on(self, rig: Rig) -> None:
        rig.put("q", "0", "1", "2")
        me = rig.consumer()
        self.lose(rig, me, "q", limit=2)
        first, second = taken(me, "q", limit=2)
        [third] = taken(me, "q", limit=2)
        assert [d.payload for d in (first, second, third)] == [b"0", b"1", b"2"]
        assert int(first.tag) < int(second.tag) < int(third.tag)

    def test_a_tag_tells_when_the_message_was_asked_for(self, rig: Rig) -> None:
        rig.put("q", "0", "1")
        me = rig.consumer()
        taken(me, "q", limit=1)
        began_us = rig.database.now_us()
        [delivery] = taken(me, "q")
        assert abs(int(delivery.tag) - began_us) < 60_000_000


class TestOrphans:
    """Ids that an operator's hand or a half-deleted key left behind."""

    def test_id_without_a_message_is_skipped_and_cleaned(self, rig: Rig) -> None:
        rig.schedule("q", payload("a"), 1000, id="a")
        rig.schedule("q", payload("gone"), 2000, id="gone")
        rig.schedule("q", payload("b"), 3000, id="b")
        rig.client.hdel(rig.key("q", "messages"), "gone")
        rig.database.advance(HOUR)
        assert texts(taken(rig.consumer(), "q")) == [payload("a"), payload("b")]
        assert rig.client.exists(rig.key("q", "schedule")) == 0

    def test_message_without_a_due_time_is_not_overwritten(self, rig: Rig) -> None:
        rig.schedule("q", "lost", 1000, id="a")
        rig.client.zrem(rig.key("q", "schedule"), "a")
        rig.schedule("q", "kept", 1000, id="a")
        assert rig.client.hget(rig.key("q", "messages"), "a") == b"0:lost"
        rig.database.advance(HOUR)
        assert texts(taken(rig.consumer(), "q")) == ["kept"]


def test_steps_are_those_of_kombu() -> None:
    from kombu.transport.redis import PRIORITY_STEPS

    assert list(STEPS) == PRIORITY_STEPS


@pytest.mark.parametrize("step", [5, 77])
def test_a_step_that_is_none_any_more_is_the_first(rig: Rig, step: int) -> None:
    """``priority_steps`` was changed while the message waited: nobody would look into a list of its own."""
    rig.schedule("q", "m", 1000, step=step)
    rig.database.advance(2000)
    [delivery] = taken(rig.consumer(), "q")
    assert (delivery.payload, delivery.step) == (b"m", 0)
