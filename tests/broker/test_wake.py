"""Wake-up tokens: at most one, and who leaves one behind."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.publish_calls import TOKEN_MS
from kombu_redisdelay.broker.takes import PEEKS
from tests.broker.rig import Rig, park, taken, takes_of

HOUR = 3_600_000


class TestPublishing:
    def test_put_wakes_once(self, rig: Rig) -> None:
        rig.put("q", "m")
        assert rig.tokens("q") == 1
        rig.put("q", "m", "m")
        assert rig.tokens("q") == 1

    def test_put_wakes_again_after_the_token_was_used(self, rig: Rig) -> None:
        rig.put("q", "m")
        rig.use_up_token("q")
        rig.put("q", "m")
        assert rig.tokens("q") == 1

    @pytest.mark.parametrize("publish", ["put", "schedule"])
    def test_a_token_that_nobody_takes_goes(self, rig: Rig, publish: str) -> None:
        """The queue may be one that nobody ever consumes from, such as the replies for a client that died."""
        rig.put("q", "m") if publish == "put" else rig.schedule("q", "m", HOUR)
        assert TOKEN_MS - 60_000 < rig.client.pttl(rig.key("q", "wake")) <= TOKEN_MS

    def test_another_queue_is_not_woken(self, rig: Rig) -> None:
        rig.put("q", "m")
        assert rig.tokens("q2") == 0

    def test_the_first_schedule_wakes(self, rig: Rig) -> None:
        rig.schedule("q", "m", HOUR)
        assert rig.tokens("q") == 1

    def test_an_earlier_schedule_wakes(self, rig: Rig) -> None:
        rig.schedule("q", "late", 2 * HOUR)
        rig.use_up_token("q")
        rig.schedule("q", "early", HOUR)
        assert rig.tokens("q") == 1

    def test_a_later_schedule_does_not(self, rig: Rig) -> None:
        rig.schedule("q", "early", HOUR)
        rig.use_up_token("q")
        rig.schedule("q", "late", 2 * HOUR)
        assert rig.tokens("q") == 0

    def test_a_schedule_in_the_past_wakes(self, rig: Rig) -> None:
        rig.schedule("q", "m", -HOUR)
        assert rig.tokens("q") == 1


class TestTaking:
    def test_leaving_messages_passes_the_baton(self, rig: Rig) -> None:
        rig.put("q", "0", "1")
        rig.use_up_token("q")
        taken(rig.consumer(), "q", limit=1)
        assert rig.tokens("q") == 1

    def test_leaving_messages_of_a_low_priority_too(self, rig: Rig) -> None:
        rig.put("q", "0")
        rig.put("q", "1", step=9)
        rig.use_up_token("q")
        taken(rig.consumer(), "q", limit=1)
        assert rig.tokens("q") == 1

    def test_leaving_nothing_removes_the_token(self, rig: Rig) -> None:
        rig.put("q", "0", "1")
        taken(rig.consumer(), "q")
        assert rig.tokens("q") == 0

    def test_each_queue_for_itself(self, rig: Rig) -> None:
        rig.put("a", "0")
        rig.put("b", "0", "1")
        taken(rig.consumer(), "a", "b", limit=2)
        assert (rig.tokens("a"), rig.tokens("b")) == (0, 1)

    def test_without_credit_migrates_and_wakes(self, rig: Rig) -> None:
        rig.schedule("q", "m", 1000)
        rig.use_up_token("q")
        rig.database.advance(HOUR)
        taken(rig.consumer(), "q", limit=0)
        assert rig.ready("q") == ["m"]
        assert rig.tokens("q") == 1

    def test_without_credit_leaves_the_token_to_others(self, rig: Rig) -> None:
        rig.put("q", "m")
        taken(rig.consumer(), "q", limit=0)
        assert rig.tokens("q") == 1

    @pytest.mark.parametrize("delivered", [True, False])
    def test_what_is_given_back_wakes(self, rig: Rig, delivered: bool) -> None:
        rig.put("q", "m")
        consumer = rig.consumer()
        deliveries = taken(consumer, "q")
        if delivered:
            consumer.requeue("q", deliveries[0].tag)
        else:
            consumer.put_back(deliveries)
        assert rig.tokens("q") == 1

    def test_what_is_parked_as_the_first_to_be_due_wakes(self, rig: Rig) -> None:
        rig.put("q", "early")
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        park(consumer, delivery, "id", rig.database.now_ms() + HOUR)
        assert rig.tokens("q") == 1

    def test_what_is_buried_does_not(self, rig: Rig) -> None:
        rig.put("q", "m")
        consumer = rig.consumer(delivery_limit=1)
        [delivery] = taken(consumer, "q")
        consumer.requeue("q", delivery.tag)
        assert rig.tokens("q") == 0


class TestGlance:
    """By a consumer that was not woken."""

    def test_nothing_at_all(self, rig: Rig) -> None:
        assert takes_of(rig.consumer(), ["a", "b"]).peek() == (False, {}, ("a", "b"), False)

    @pytest.mark.parametrize("in_ms", [-1000, 10_000])
    def test_something_scheduled(self, rig: Rig, in_ms: int) -> None:
        rig.schedule("b", "m", 10_000)
        rig.client.zincrby(rig.store.keys("b").schedule, in_ms - 10_000, "m")
        peek = takes_of(rig.consumer(), ["a", "b"]).peek()
        assert not peek.any_ready
        assert list(peek.due) == ["b"]
        assert peek.due["b"] == pytest.approx(max(0, in_ms / 1000), abs=5)

    @pytest.mark.parametrize("step", [0, 9])
    def test_something_ready(self, rig: Rig, step: int) -> None:
        rig.put("b", "m", step=step)
        assert takes_of(rig.consumer(), ["a", "b"]).peek().any_ready

    def test_a_key_that_holds_something_else_is_named(self, rig: Rig) -> None:
        rig.client.set(rig.store.keys("b").schedule, "x")
        with pytest.raises(ResponseError, match=r"redisdelay:\{b\}:schedule' holds a string"):
            takes_of(rig.consumer(), ["a", "b"]).peek()

    @pytest.mark.parametrize("count", [16, 17, 80, 101, 250])
    def test_a_few_are_enough_for_all_schedules(self, rig: Rig, count: int) -> None:
        queues = [f"q{number}" for number in range(count)]
        rig.put(queues[-1], "m", step=3)
        for queue in queues:
            rig.schedule(queue, "m", 10_000)
        consumer = rig.consumer()
        for _ in range(2):
            due: list[str] = []
            for _ in range(PEEKS if count > 16 else 1):
                peek = takes_of(consumer, queues).peek()
                assert peek.any_ready
                assert list(peek.due) == list(peek.schedules_of)
                due += peek.due
            assert due == queues


class TestLook:
    def test_nothing_at_all(self, rig: Rig) -> None:
        assert takes_of(rig.consumer(), ["a", "b"]).look() == ({}, {})

    def test_at_many_queues(self, rig: Rig) -> None:
        queues = [f"q{number}" for number in range(250)]
        rig.put("q7", "m")
        rig.put("q249", "m", step=3)
        for queue in ("q0", "q100", "q249"):
            rig.schedule(queue, "m", 10_000)
        looked = takes_of(rig.consumer(), queues).look()
        assert looked.ready == {"q7": 1, "q249": 2}
        assert list(looked.due) == ["q0", "q100", "q249"]
        assert looked.due["q100"] == pytest.approx(10, abs=5)

    def test_a_key_that_holds_something_else_is_named(self, rig: Rig) -> None:
        rig.client.set(rig.store.keys("b").schedule, "x")
        with pytest.raises(ResponseError, match=r"redisdelay:\{b\}:schedule' holds a string"):
            takes_of(rig.consumer(), ["a", "b"]).look()
