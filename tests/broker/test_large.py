"""Taking large messages, each of which costs Redis milliseconds wherever it is moved."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kombu_redisdelay.broker import takes as takes_module
from kombu_redisdelay.broker.delivery import Request
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import BYTES_PER_CALL
from tests.broker.rig import Rig, payload, taken, takes_of, texts, with_count
from tests.environments import examples

pytestmark = pytest.mark.one_server

HOUR = 3_600_000


class TestLarge:
    """Each time that a large message is moved costs Redis milliseconds, so one call moves it once."""

    LARGE = payload("large", body="x" * BYTES_PER_CALL)
    ANOTHER = payload("another", body="x" * BYTES_PER_CALL)

    @staticmethod
    def one_call(rig: Rig, *queues: str, limit: int = 64, no_ack: Collection[str] = ()) -> list[str]:
        """What one call of the script brings a consumer that has not taken before."""
        request = Request(queues, limit, no_ack=no_ack)
        _, _, _, _, _, _, _, *messages = rig.exchange(rig.consumer(), request)
        return [stored.decode() for stored in messages]

    @pytest.mark.parametrize("no_ack", [(), ("q",)])
    def test_what_is_next_goes_straight_to_the_consumer(self, rig: Rig, no_ack: Collection[str]) -> None:
        rig.schedule("q", self.LARGE, 1000, step=3)
        rig.put("q", "low", step=6)
        rig.database.advance(HOUR)
        assert self.one_call(rig, "q", no_ack=no_ack) == [f"3:{self.LARGE}"]
        assert list(rig.unacked("q").values()) == ([] if no_ack else [f"3:{self.LARGE}"])
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
        assert reply.due == {"q": 0}
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
        reply = rig.exchange(consumer, request)
        assert rig.unacked("q") == {}
        assert texts(takes_of(consumer, request.queues).taken(request, reply).deliveries) == ["ready"]

    def test_without_credit_it_becomes_ready(self, rig: Rig) -> None:
        rig.schedule("q", self.LARGE, 1000, step=3)
        rig.database.advance(HOUR)
        assert taken(rig.consumer(), "q", limit=0) == []
        assert rig.ready("q", 3) == [self.LARGE]

    def test_a_lost_reply_brings_it_again_and_moves_nothing(self, rig: Rig) -> None:
        rig.schedule("q", self.LARGE, 1000)
        rig.schedule("q", self.ANOTHER, 2000)
        rig.database.advance(HOUR)
        me = rig.consumer()
        rig.exchange(me, Request(["q"], 64))
        [again] = taken(me, "q")
        assert rig.unacked("q") == {again.tag: f"0:{self.LARGE}"}
        assert rig.scheduled("q") == [f"0:{self.ANOTHER}"]

    def test_nothing_is_taken_behind_one_to_be_held_alone(self, rig: Rig) -> None:
        suspect = with_count(self.LARGE, 3, lost=Options().isolated_after)
        rig.schedule("q", suspect, 1000)
        rig.schedule("other", "small", 2000)
        rig.database.advance(HOUR)
        assert texts(taken(rig.consumer(), "q", "other")) == [suspect]


published = st.tuples(st.sampled_from("ab"), st.sampled_from((0, 6)))


@pytest.mark.many_messages
@given(ready=st.lists(published, max_size=8), due=st.lists(published, max_size=8), limit=st.integers(1, 4))
@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_however_large_they_are_they_come_in_order(
    rig: Rig, ready: list[tuple[str, int]], due: list[tuple[str, int]], limit: int
) -> None:
    """Every message is large here, and the first to be taken is the next one of what is ready, if anything
    is: that with the highest priority."""
    rig.database.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(takes_module, "BYTES_PER_CALL", 1)
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
