"""Taking: in which order, how many, and what is migrated with it."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kombu_redisdelay.broker import consumer as consumer_module
from kombu_redisdelay.broker.delivery import Request
from kombu_redisdelay.broker.portions import BYTES_PER_CALL
from kombu_redisdelay.options import Options
from tests.broker.rig import STEPS, Rig, payload, taken, texts, with_count

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
        assert (first.queue, first.step, first.payload, first.acked) == ("a", 6, b"m", True)
        assert (second.queue, second.step, second.payload, second.acked) == ("b", 9, b"n", True)
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
        rig.client.lpush("q", anything)
        [delivery] = taken(rig.consumer(), "q")
        assert delivery.payload == anything

    def test_lease_is_registered_by_taking(self, rig: Rig) -> None:
        consumer = rig.consumer()
        taken(consumer, "q")
        assert rig.client.zrange("redisdelay:{q}:consumers", 0, -1) == []
        rig.put("q", "m")
        before = rig.database.now_ms()
        taken(consumer, "q")
        assert rig.client.zscore("redisdelay:{q}:consumers", "me") >= before + 60_000


class TestNoAck:
    def test_is_held_nowhere(self, rig: Rig) -> None:
        rig.put("q", "m")
        [delivery] = taken(rig.consumer(), "q", no_ack={"q"})
        assert not delivery.acked
        assert rig.unacked("q") == {}
        assert rig.client.keys() == []

    def test_is_said_for_each_queue(self, rig: Rig) -> None:
        rig.put("a", "m")
        rig.put("b", "n")
        first, second = taken(rig.consumer(), "a", "b", no_ack={"b"})
        assert (first.acked, second.acked) == (True, False)
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
    """One call moves 500 messages or about a quarter of a MiB at most."""

    LARGE = 64 * 1024

    def test_migrates_500(self, rig: Rig) -> None:
        for n in range(700):
            rig.schedule("q", f"{n:03}", 1000 + n)
        rig.database.advance(HOUR)
        assert taken(rig.consumer(), "q", limit=0) == []
        assert rig.ready("q") == [f"{n:03}" for n in range(500)]
        reply = rig.consumer().take(Request(["q"], 0, in_turn=True))
        assert len(rig.ready("q")) == 700
        assert reply.next_due is None

    def test_says_at_once_when_more_is_due(self, rig: Rig) -> None:
        for n in range(501):
            rig.schedule("q", str(n), 1000)
        rig.database.advance(HOUR)
        assert rig.consumer().take(Request(["q"], 0, in_turn=True)).next_due == 0

    def test_migrates_500_from_all_queues_together(self, rig: Rig) -> None:
        queues = ("a", "b", "c")
        for queue in queues:
            for n in range(300):
                rig.schedule(queue, str(n), 1000)
        rig.database.advance(HOUR)
        taken(rig.consumer(), *queues, limit=0)
        assert sum(len(rig.ready(queue)) for queue in queues) == 500

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


class TestLarge:
    """Each time that a large message is moved costs Redis milliseconds, so one call moves it once."""

    LARGE = payload("large", body="x" * BYTES_PER_CALL)
    ANOTHER = payload("another", body="x" * BYTES_PER_CALL)

    @staticmethod
    def one_call(rig: Rig, *queues: str, limit: int = 64, no_ack: Collection[str] = ()) -> list[str]:
        """What one call of the script brings a consumer that has not taken before."""
        taken(rig.consumer("somebody"), "to load the script")
        request = Request(queues, limit, no_ack=no_ack)
        _, _, _, _, _, *messages = rig.client.execute_command(*rig.consumer().ask_for(request))
        return [stored.decode() for stored in messages]

    @pytest.mark.parametrize("no_ack", [(), ("q",)])
    def test_what_is_next_goes_straight_to_the_consumer(self, rig: Rig, no_ack: Collection[str]) -> None:
        rig.schedule("q", self.LARGE, 1000, step=3)
        rig.put("q", "low", step=6)
        rig.database.advance(HOUR)
        assert self.one_call(rig, "q", no_ack=no_ack) == [f"3:{self.LARGE}"]
        assert rig.unacked("q") == ({} if no_ack else {"1": f"3:{self.LARGE}"})
        assert rig.scheduled("q") == rig.ready("q", 3) == []
        assert rig.tokens("q") == 1

    def test_a_step_that_is_none_any_more(self, rig: Rig) -> None:
        rig.schedule("q", self.LARGE, 1000, step=5)
        rig.database.advance(HOUR)
        assert self.one_call(rig, "q") == []
        assert rig.ready("q") == [self.LARGE]

    @pytest.mark.parametrize(("queue", "step"), [("q", 3), ("q", 0), ("other", 3)])
    def test_what_is_not_next_goes_to_its_ready_list(self, rig: Rig, queue: str, step: int) -> None:
        rig.schedule("q", self.LARGE, 1000, step=3)
        rig.put(queue, "next", step=step)
        rig.database.advance(HOUR)
        assert self.one_call(rig, "other", "q") == []
        assert rig.ready("q", 3)[-1] == self.LARGE
        assert texts(taken(rig.consumer(), "other", "q")) == ["next", self.LARGE]

    def test_it_waits_behind_what_was_due_before(self, rig: Rig) -> None:
        rig.schedule("q", "small", 1000)
        rig.schedule("q", self.LARGE, 2000)
        rig.database.advance(HOUR)
        assert texts(taken(rig.consumer(), "q")) == ["small", self.LARGE]

    def test_they_come_in_due_order_one_in_each_take(self, rig: Rig) -> None:
        rig.schedule("q", self.LARGE, 2000)
        rig.schedule("q", self.ANOTHER, 1000)
        rig.database.advance(HOUR)
        consumer = rig.consumer()
        reply = consumer.take(Request(["q"], 64))
        assert texts(reply.deliveries) == [self.ANOTHER]
        assert reply.next_due == 0
        assert texts(taken(consumer, "q")) == [self.LARGE]

    def test_a_take_brings_what_is_ready_all_the_same(self, rig: Rig) -> None:
        rig.put("q", "ready")
        rig.schedule("q", self.LARGE, 1000)
        rig.schedule("q", self.ANOTHER, 2000)
        rig.database.advance(HOUR)
        consumer = rig.consumer()
        assert texts(taken(consumer, "q", limit=1)) == ["ready"]
        assert rig.scheduled("q") == [f"0:{self.ANOTHER}"]
        assert texts(taken(consumer, "q", limit=1)) == [self.LARGE]

    def test_also_when_it_was_asked_for_without_waiting(self, rig: Rig) -> None:
        taken(rig.consumer("somebody"), "to load the script")
        rig.put("q", "ready")
        rig.schedule("q", self.LARGE, 1000)
        rig.database.advance(HOUR)
        consumer, request = rig.consumer(), Request(["q"], 1)
        reply = rig.client.execute_command(*consumer.ask_for(request))
        assert rig.unacked("q") == {}
        assert texts(consumer.taken(request, reply).deliveries) == ["ready"]

    def test_without_credit_it_becomes_ready(self, rig: Rig) -> None:
        rig.schedule("q", self.LARGE, 1000, step=3)
        rig.database.advance(HOUR)
        assert taken(rig.consumer(), "q", limit=0) == []
        assert rig.ready("q", 3) == [self.LARGE]

    def test_a_lost_reply_brings_it_again_and_moves_nothing(self, rig: Rig) -> None:
        rig.schedule("q", self.LARGE, 1000)
        rig.schedule("q", self.ANOTHER, 2000)
        rig.database.advance(HOUR)
        first = taken(rig.consumer(), "q")
        assert taken(rig.consumer(), "q") == first
        assert rig.unacked("q") == {"1": f"0:{self.LARGE}"}
        assert rig.scheduled("q") == [f"0:{self.ANOTHER}"]

    def test_one_to_be_held_alone_waits_for_an_idle_consumer(self, rig: Rig) -> None:
        suspect = with_count(self.LARGE, Options().alone_after)
        rig.put("q", "ready")
        busy, idle = rig.consumer("busy"), rig.consumer("idle")
        taken(busy, "q")
        rig.schedule("q", suspect, 1000)
        rig.database.advance(HOUR)
        assert taken(busy, "q") == []
        assert texts(taken(idle, "q")) == [suspect]


class TestNextDue:
    def test_nothing_is_scheduled(self, rig: Rig) -> None:
        rig.put("q", "m")
        assert rig.consumer().take(Request(["q"], 1, in_turn=True)).next_due is None

    def test_is_a_remainder_of_the_first_in_any_queue(self, rig: Rig) -> None:
        rig.schedule("a", "m", 90_000)
        rig.schedule("b", "m", 30_000)
        rig.schedule("b", "n", 60_000)
        next_due = rig.consumer().take(Request(["a", "b"], 1, in_turn=True)).next_due
        assert next_due is not None
        assert 25 < next_due <= 30

    def test_tells_the_servers_time(self, rig: Rig) -> None:
        before = rig.database.now_us()
        now_ms = rig.consumer().take(Request(["q"], 1, in_turn=True)).now_ms
        assert before <= round(now_ms * 1000) <= rig.database.now_us()


class TestLostReply:
    """A call repeated with the same first tag returns what the first one took, and takes nothing."""

    def test_same_messages_again(self, rig: Rig) -> None:
        rig.put("a", "a0", "a1", "a2")
        rig.put("b", "b0", "b1", step=3)
        lost = rig.consumer()
        first = taken(lost, "a", "b", limit=4)
        held = {**rig.unacked("a"), **rig.unacked("b")}
        assert taken(rig.consumer(), "a", "b", limit=4) == first
        assert {**rig.unacked("a"), **rig.unacked("b")} == held
        assert rig.ready("b", 3) == ["b1"]

    def test_then_goes_on(self, rig: Rig) -> None:
        rig.put("q", "0", "1", "2")
        taken(rig.consumer(), "q", limit=2)
        repeated = rig.consumer()
        assert [d.tag for d in taken(repeated, "q", limit=2)] == ["1", "2"]
        assert [(d.tag, d.payload) for d in taken(repeated, "q", limit=2)] == [("3", b"2")]


class TestOrphans:
    """Ids that an operator's hand or a half-deleted key left behind."""

    def test_id_without_a_message_is_skipped_and_cleaned(self, rig: Rig) -> None:
        rig.schedule("q", payload("a"), 1000, id="a")
        rig.schedule("q", payload("gone"), 2000, id="gone")
        rig.schedule("q", payload("b"), 3000, id="b")
        rig.client.hdel("redisdelay:{q}:messages", "gone")
        rig.database.advance(HOUR)
        assert texts(taken(rig.consumer(), "q")) == [payload("a"), payload("b")]
        assert rig.client.exists("redisdelay:{q}:schedule") == 0

    def test_message_without_a_due_time_is_not_overwritten(self, rig: Rig) -> None:
        rig.schedule("q", "lost", 1000, id="a")
        rig.client.zrem("redisdelay:{q}:schedule", "a")
        rig.schedule("q", "kept", 1000, id="a")
        assert rig.client.hget("redisdelay:{q}:messages", "a") == b"0:lost"
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


published = st.tuples(st.sampled_from("ab"), st.sampled_from((0, 6)))


@given(ready=st.lists(published, max_size=8), due=st.lists(published, max_size=8), limit=st.integers(1, 4))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_however_large_they_are_they_come_in_order(
    rig: Rig, ready: list[tuple[str, int]], due: list[tuple[str, int]], limit: int
) -> None:
    """Every message is large here, and the first to be taken is the next one of what is ready, if anything
    is: that with the highest priority."""
    rig.database.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumer_module, "BYTES_PER_CALL", 1)
        for number, (queue, step) in enumerate(ready):
            rig.put(queue, f"{queue}{step} {number}", step=step)
        for number, (queue, step) in enumerate(due, len(ready)):
            rig.schedule(queue, f"{queue}{step} {number}", 1000 + number, step=step)
        rig.database.advance(HOUR)
        consumer = rig.consumer()
        order = []
        for _ in range(len(ready) + len(due)):
            was_ready = [step for step in (0, 6) if rig.ready("a", step) or rig.ready("b", step)]
            [delivery] = taken(consumer, "a", "b", limit=limit)
            assert delivery.step <= min(was_ready, default=delivery.step)
            order.append(delivery.payload.decode())
        assert taken(consumer, "a", "b", limit=limit) == []
    for queue in "ab":
        for step in (0, 6):
            numbers = [int(text.split()[1]) for text in order if text.startswith(f"{queue}{step} ")]
            assert numbers == [n for n, where in enumerate(ready + due) if where == (queue, step)]
