"""The ends of a delivery: ack, requeue, put back, park, dead letter."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from kombu_redisdelay.broker import consumer as consumer_module
from kombu_redisdelay.broker import recovery
from kombu_redisdelay.broker.server.scripts import Script
from kombu_redisdelay.broker.server.wire import Argument, Caller
from tests.broker.rig import Rig, dead_letter, park, payload, taken, texts, with_count

HOUR = 3_600_000


class TestAck:
    def test_forgets_for_good(self, rig: Rig) -> None:
        rig.put("q", "a", "b")
        consumer = rig.consumer()
        a, b = taken(consumer, "q")
        assert rig.ack(consumer, "q", a.tag)
        assert rig.unacked("q") == {b.tag: "0:b"}
        assert rig.ready("q") == []

    def test_twice_says_so(self, rig: Rig) -> None:
        rig.put("q", "a")
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        assert rig.ack(consumer, "q", delivery.tag)
        assert not rig.ack(consumer, "q", delivery.tag)

    def test_another_consumers_tags_are_not_ours(self, rig: Rig) -> None:
        rig.put("q", "a")
        [delivery] = taken(rig.consumer("one"), "q")
        assert not rig.ack(rig.consumer("two"), "q", delivery.tag)
        assert rig.unacked("q", "one") == {delivery.tag: "0:a"}

    def test_which_are_not_held(self, rig: Rig) -> None:
        rig.put("q", "a", "b")
        consumer = rig.consumer()
        a, b = taken(consumer, "q")
        consumer.ack("q", a.tag)
        assert consumer.lost_tags("q", [a.tag, b.tag]) == {a.tag}


class TestRequeue:
    def test_goes_to_the_tail_with_its_step_and_count(self, rig: Rig) -> None:
        rig.put("q", payload("a"), payload("b"), step=3)
        consumer = rig.consumer()
        [a] = taken(consumer, "q", limit=1)
        assert consumer.requeue("q", a.tag)
        assert rig.ready("q", 3) == [payload("b"), with_count(payload("a"), 1)]
        assert rig.unacked("q") == {}

    def test_not_held_any_more_is_left_alone(self, rig: Rig) -> None:
        rig.put("q", "a")
        consumer = rig.consumer()
        [a] = taken(consumer, "q")
        consumer.ack("q", a.tag)
        assert not consumer.requeue("q", a.tag)
        assert rig.ready("q") == []

    def test_counts_every_time(self, rig: Rig) -> None:
        rig.put("q", payload("a"))
        consumer = rig.consumer()
        for deliveries in range(1, 13):
            [delivery] = taken(consumer, "q")
            consumer.requeue("q", delivery.tag)
            assert rig.ready("q") == [with_count(payload("a"), deliveries)]


class TestCountIsHarmless:
    """What the publisher wrote stays as it is, byte for byte."""

    @pytest.mark.parametrize(
        "text",
        [
            '{"a": [], "b": {}, "c": 12345678901234567890123, "d": 0.1, "e": 1e400}',
            '{"a":[],"b":{}}',
            '{"é": "☃ 😀", "escaped": "\\u2603\\ud83d\\ude00\\u0000"}',
            '{"a": "{\\"redisdelay-deliveries\\": 7, }"}',
            '{"a": {"redisdelay-deliveries": 7, "b": 1}}',
            '{"%d": "%s%%", "%1": "%0"}',
            '{"a": 1}  \n',
        ],
    )
    def test_an_object_carries_it_in_front(self, rig: Rig, text: str) -> None:
        rig.put("q", text)
        consumer = rig.consumer()
        for deliveries in (1, 2, 3):
            [delivery] = taken(consumer, "q")
            consumer.requeue("q", delivery.tag)
            assert rig.ready("q") == [with_count(text, deliveries)]

    def test_whitespace_before_the_object(self, rig: Rig) -> None:
        rig.put("q", ' \n\t{ "a": []}')
        consumer = rig.consumer()
        for deliveries in (1, 2):
            [delivery] = taken(consumer, "q")
            consumer.requeue("q", delivery.tag)
            assert rig.ready("q") == [f' \n\t{{"redisdelay-deliveries": {deliveries},  "a": []}}']

    def test_a_count_written_without_spaces_by_another_encoder(self, rig: Rig) -> None:
        rig.put("q", '{"redisdelay-deliveries":4,"a":1}')
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        consumer.requeue("q", delivery.tag)
        assert rig.ready("q") == ['{"redisdelay-deliveries": 5, "a":1}']

    @pytest.mark.parametrize("text", ['{"a": 1}', '{"a":1}', ' \n{\t "a": []}', '{"'])
    def test_is_taken_out_again_when_it_is_buried(self, rig: Rig, text: str) -> None:
        rig.put("q", text)
        consumer = rig.consumer(delivery_limit=3)
        for _ in range(3):
            [delivery] = taken(consumer, "q")
            consumer.requeue("q", delivery.tag)
        assert rig.dead("q")[0].partition("\n")[2] == text

    @pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"{", b"\x00\xff{", b'["{"]', b"{ 'a': 1}"])
    def test_what_cannot_carry_it_stays_as_it_is(self, rig: Rig, data: bytes) -> None:
        rig.client.lpush(rig.store.keys("q").ready, data)
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        consumer.requeue("q", delivery.tag)
        assert rig.client.lrange(rig.store.keys("q").ready, 0, -1) == [data]


class TestDeliveryLimit:
    @pytest.mark.parametrize("limit", [1, 2, 5])
    def test_buries_at_exactly_the_limit(
        self, rig: Rig, limit: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig.put("q", payload("a"), step=3)
        consumer = rig.consumer(delivery_limit=limit)
        for _ in range(limit):
            assert rig.dead("q") == []
            assert not caplog.records
            [delivery] = taken(consumer, "q")
            assert consumer.requeue("q", delivery.tag)
        assert rig.ready("q", 3) == []
        assert rig.unacked("q") == {}
        [letter] = rig.dead("q")
        head, bytes_as_they_were = letter.split("\n", 1)
        when, deliveries, step, reason = head.split(" ", 3)
        assert abs(int(when) - rig.database.now_ms()) < 60_000
        assert (deliveries, step) == (str(limit), "3")
        assert str(limit) in reason
        assert "limit" in reason
        assert bytes_as_they_were == payload("a")
        [record] = caplog.records
        assert record.levelno == logging.ERROR
        assert "'q'" in record.getMessage()

    def test_none(self, rig: Rig) -> None:
        rig.put("q", payload("a"))
        consumer = rig.consumer(delivery_limit=0)
        for _ in range(50):
            [delivery] = taken(consumer, "q")
            consumer.requeue("q", delivery.tag)
        assert rig.dead("q") == []

    def test_a_message_that_was_never_seen_has_not_failed(self, rig: Rig) -> None:
        rig.put("q", payload("a"))
        consumer = rig.consumer(delivery_limit=1)
        for _ in range(3):
            consumer.put_back(taken(consumer, "q"))
        assert rig.ready("q") == [payload("a")]

    def test_a_failure_does_not_outlive_the_message(self, rig: Rig) -> None:
        """Or it would be taken for the cause of a crash."""
        rig.put("q", payload("a"))
        consumer = rig.consumer()
        [lost] = taken(consumer, "q")
        consumer.fail("q", lost.tag)
        rig.end_lease("q")
        assert rig.recover("q") == 1
        assert consumer.lost_tags("q", [lost.tag]) == {lost.tag}

        taken(consumer, "q")
        consumer.give_back_all(crashed=True)
        assert rig.ready("q") == [with_count(payload("a"), 2, lost=2)]


class TestPutBack:
    def test_to_the_head_as_it_was(self, rig: Rig) -> None:
        rig.put("q", *(payload(str(n)) for n in range(5)))
        rig.put("q", payload("low"), step=9)
        consumer = rig.consumer()
        first, *others = taken(consumer, "q")
        consumer.put_back(others)
        assert rig.ready("q") == [payload(str(n)) for n in range(1, 5)]
        assert rig.ready("q", 9) == [payload("low")]
        assert rig.unacked("q") == {first.tag: "0:" + payload("0")}

    def test_several_queues(self, rig: Rig) -> None:
        rig.put("a", "a0", "a1")
        rig.put("b", "b0", "b1")
        consumer = rig.consumer()
        consumer.put_back(taken(consumer, "a", "b"))
        assert (rig.ready("a"), rig.ready("b")) == (["a0", "a1"], ["b0", "b1"])

    @pytest.mark.many_messages
    def test_more_than_one_call_moves(self, rig: Rig) -> None:
        everything = [f"{n:04}" for n in range(1200)]
        rig.put("q", *everything)
        consumer = rig.consumer()
        deliveries = [d for _ in range(3) for d in taken(consumer, "q", limit=400)]
        consumer.put_back(deliveries)
        assert rig.ready("q") == everything
        assert rig.unacked("q") == {}

    def test_more_bytes_than_one_call_moves(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        everything = ["0" * 600, "1" * 600, "2" * 1200, "3" * 200]
        rig.put("q", *everything)
        consumer = rig.consumer()
        deliveries = taken(consumer, "q")
        tags_of_calls = []

        class Spy(Script):
            def __call__(self, server: Caller, keys: Sequence[str], args: Sequence[Argument]) -> Any:
                tags_of_calls.append(list(args[len(self.names) :: 2]))
                return super().__call__(server, keys, args)

        monkeypatch.setattr(consumer_module, "BYTES_PER_CALL", 1000)
        monkeypatch.setattr(recovery, "GIVE_BACK", Spy("give_back"))
        consumer.put_back(deliveries)
        first, second, third, fourth = (delivery.tag for delivery in deliveries)
        assert tags_of_calls == [[fourth, third], [second, first]]
        assert rig.ready("q") == everything

    def test_consumed_without_acks(self, rig: Rig) -> None:
        rig.put("q", "0", "1", step=6)
        consumer = rig.consumer()
        consumer.put_back(taken(consumer, "q", no_ack={"q"}))
        assert rig.ready("q", 6) == ["0", "1"]

    @pytest.mark.parametrize("no_ack", [(), ("q",)])
    def test_wakes_others(self, rig: Rig, no_ack: tuple[str, ...]) -> None:
        rig.put("q", "m")
        consumer = rig.consumer()
        deliveries = taken(consumer, "q", no_ack=no_ack)
        assert rig.tokens("q") == 0
        consumer.put_back(deliveries)
        assert rig.tokens("q") == 1

    def test_nothing(self, rig: Rig) -> None:
        rig.consumer().put_back([])
        assert rig.all_keys() == []

    def test_lost_in_the_meantime_is_left_alone(self, rig: Rig) -> None:
        rig.put("q", "m")
        consumer = rig.consumer("late")
        deliveries = taken(consumer, "q")
        rig.end_lease("q", "late")
        rig.recover("q")
        consumer.put_back(deliveries)
        assert len(rig.ready("q")) == 1


class TestPark:
    def test_moves_to_the_schedule(self, rig: Rig) -> None:
        rig.put("q", "early", step=3)
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        due_ms = rig.database.now_ms() + HOUR
        park(consumer, delivery, "id", due_ms)
        assert rig.client.hgetall(rig.key("q", "messages")) == {b"id": b"3:early"}
        assert rig.client.zscore(rig.key("q", "schedule"), "id") == due_ms
        assert rig.unacked("q") == {}
        rig.database.advance(HOUR)
        assert texts(taken(consumer, "q")) == ["early"]

    def test_under_an_id_that_is_taken(self, rig: Rig) -> None:
        rig.schedule("q", "scheduled", HOUR, id="id")
        rig.put("q", "early")
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        park(consumer, delivery, "id", rig.database.now_ms() + 2 * HOUR)
        assert rig.scheduled("q") == ["0:scheduled", "0:early"]

    def test_lost_in_the_meantime_is_left_alone(self, rig: Rig) -> None:
        rig.put("q", "early")
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        consumer.ack("q", delivery.tag)
        park(consumer, delivery, "id", rig.database.now_ms() + HOUR)
        assert rig.scheduled("q") == []


class TestDeadLetter:
    def test_keeps_when_why_and_the_bytes(self, rig: Rig) -> None:
        rig.put("q", "not\nJSON", step=9)
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        dead_letter(consumer, delivery, "not JSON:\n line 1  column 1")
        [letter] = rig.dead("q")
        when, deliveries, step, rest = letter.split(" ", 3)
        assert abs(int(when) - rig.database.now_ms()) < 60_000
        assert (deliveries, step) == ("0", "9")
        assert rest == "not JSON: line 1 column 1\nnot\nJSON"
        assert rig.unacked("q") == {}

    def test_says_how_often_it_was_delivered(self, rig: Rig) -> None:
        rig.put("q", with_count(payload("a"), 4))
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        dead_letter(consumer, delivery, "why")
        assert rig.dead("q")[0].split(" ")[1] == "4"

    def test_consumed_without_acks(self, rig: Rig) -> None:
        rig.put("q", "m")
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q", no_ack={"q"})
        dead_letter(consumer, delivery, "why")
        assert len(rig.dead("q")) == 1

    def test_lost_in_the_meantime_is_left_alone(self, rig: Rig) -> None:
        rig.put("q", "m")
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        consumer.ack("q", delivery.tag)
        dead_letter(consumer, delivery, "why")
        assert rig.dead("q") == []
