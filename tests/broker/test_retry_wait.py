"""A message that failed waits before it is tried again, longer each time."""

from __future__ import annotations

from typing import Any

import pytest

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.schedule import Schedule
from tests.broker.rig import Rig, payload, taken, texts, with_count

#: Waits after each failure, in seconds, until it is given up.
WAITS = [0, 1, 2, 4, 8, 16, 32, 60]


def waits(rig: Rig, options: Options, most: int) -> list[float]:
    """How long a message waits that fails so many times, in seconds, or until it is a dead letter."""
    consumer, found = rig.consumer(options=options), []
    for _ in range(most):
        [delivery] = taken(consumer, "q")
        now_us = rig.database.now_us()
        assert consumer.requeue("q", delivery.tag)
        if rig.dead("q"):
            break
        [due_ms] = [
            score for _, score in rig.client.zrange(rig.key("q", "schedule"), 0, -1, withscores=True)
        ] or [0]
        found.append(round(max(0, due_ms - now_us / 1000) / 1000, 1))
        rig.database.advance(24 * 3_600_000)
    return found


def test_the_default_gives_up_after_two_minutes_of_waiting(rig: Rig) -> None:
    rig.put("q", payload("a"))
    assert waits(rig, Options(), 20) == WAITS
    assert sum(WAITS) == 123


@pytest.mark.parametrize(
    ("retry_wait", "expected"),
    [
        (0, [0] * 9),
        (0.5, [0, 0.5, 1, 2, 4, 8, 16, 32, 60]),
        (20, [0, 20, 40, 60, 60, 60, 60, 60, 60]),
        # No wait is shorter than the one before.
        (300, [0, *[300] * 8]),
    ],
)
def test_another_first_wait(rig: Rig, retry_wait: float, expected: list[float]) -> None:
    rig.put("q", payload("a"))
    assert waits(rig, Options(delivery_limit=None, retry_wait=retry_wait), 9) == expected


def test_after_any_number_of_failures(rig: Rig) -> None:
    rig.put("q", with_count(payload("a"), 10**9 - 1))
    assert waits(rig, Options(delivery_limit=None), 2) == [60, 60]


def failed_twice(rig: Rig, text: str, step: int = 0) -> Consumer:
    """Returns its consumer."""
    rig.put("q", with_count(text, 1), step=step)
    consumer = rig.consumer(options=Options())
    [delivery] = taken(consumer, "q")
    assert consumer.requeue("q", delivery.tag)
    assert not consumer.requeue("q", delivery.tag)
    return consumer


def test_it_keeps_its_step_and_others_are_served_meanwhile(rig: Rig) -> None:
    consumer = failed_twice(rig, payload("a"), step=3)
    rig.put("q", payload("other"), step=9)
    assert rig.scheduled("q") == ["3:" + with_count(payload("a"), 2)]
    assert texts(taken(consumer, "q")) == [payload("other")]
    rig.database.advance(1100)
    [again] = taken(consumer, "q")
    assert (again.step, again.payload.decode()) == (3, with_count(payload("a"), 2))


@pytest.mark.parametrize(
    ("headers", "properties", "id"),
    [
        ({"id": "task", "x": {"id": "no"}}, {"message_id": "m"}, "task"),
        (
            {"id": {"__type__": "uuid", "__value__": {"hex": "0" * 31 + "1"}}},
            {},
            f"{'0' * 8}-0000-0000-0000-{'0' * 11}1",
        ),
        ({"id": 5}, {}, "5"),
        ({}, {"message_id": "m", "correlation_id": "c"}, "m"),
        ({}, {"correlation_id": "c", "delivery_tag": "t"}, "c"),
        ({}, {"delivery_tag": "t"}, "t"),
    ],
)
def test_it_is_found_by_the_id_that_was_published(
    rig: Rig, headers: dict[str, Any], properties: dict[str, Any], id: str
) -> None:
    failed_twice(rig, payload("", headers=headers, properties=properties))
    [found] = Schedule(rig.store).find("q", id)
    assert Schedule(rig.store).cancel("q", [id]) == [1]
    assert found.queue == "q"


@pytest.mark.parametrize("text", ['{"a": 1}', '{"headers": 5}', '{"'])
def test_what_is_no_message_has_its_tag_for_an_id(rig: Rig, text: str) -> None:
    failed_twice(rig, text)
    assert rig.scheduled("q") == ["0:" + with_count(text, 2)]


def test_an_id_that_is_scheduled_already(rig: Rig) -> None:
    rig.schedule("q", payload("other"), 3_600_000, id="a")
    failed_twice(rig, payload("a"))
    assert rig.scheduled("q") == ["0:" + with_count(payload("a"), 2), "0:" + payload("other")]


def test_a_queue_that_expires_lives_on(rig: Rig) -> None:
    rig.expires_ms["q"] = 30_000
    failed_twice(rig, payload("a"))
    for key in ("schedule", "messages", "wake"):
        assert 0 < rig.client.pttl(rig.key("q", key)) <= 30_000


def test_operations_on_all_queues_find_it(rig: Rig) -> None:
    failed_twice(rig, payload("a"))
    assert rig.client.zscore(rig.known, "q") is not None


def test_a_callback_that_failed_before_its_consumer_ended(rig: Rig) -> None:
    rig.put("q", with_count(payload("failed"), 1), payload("beside"))
    consumer = rig.consumer(options=Options())
    failed, _ = taken(consumer, "q")
    consumer.fail("q", failed.tag)
    assert consumer.give_back_all()
    assert rig.ready("q") == [with_count(payload("beside"), 1)]
    assert rig.scheduled("q") == ["0:" + with_count(payload("failed"), 2)]


class TestLost:
    """Its consumer is gone."""

    def test_nothing_waits_whose_guilt_is_not_known(self, rig: Rig) -> None:
        texts_before = [with_count(payload(str(lost)), lost, lost=lost) for lost in range(3)]
        rig.put("q", *texts_before)
        options = Options()
        taken(rig.consumer("gone", options=options), "q")
        rig.end_lease("q", "gone")
        assert rig.recover("q", rig.recoverer(options=options)) == 3
        # The last one is to be held alone from now on.
        after = [with_count(payload(str(lost)), lost + 1, lost=lost + 1) for lost in range(3)]
        assert rig.ready("q") == after

    def test_what_was_held_alone_waits(self, rig: Rig) -> None:
        rig.put("q", with_count(payload("a"), 4, lost=3))
        options = Options()
        taken(rig.consumer("gone", options=options), "q")
        rig.end_lease("q", "gone")
        assert rig.recover("q", rig.recoverer(options=options)) == 1
        assert rig.ready("q") == []
        assert rig.scheduled("q") == ["0:" + with_count(payload("a"), 5, lost=3)]
        rig.database.advance(1100)
        [again] = taken(rig.consumer(), "q")
        assert again.payload.decode() == with_count(payload("a"), 5, lost=3)

    @pytest.mark.many_messages
    def test_many_that_must_wait(self, rig: Rig) -> None:
        options = Options()
        rig.put("q", *(with_count(payload(str(n)), 4, lost=3) for n in range(450)))
        gone = rig.consumer("gone", options=options)
        while taken(gone, "q", limit=500):
            pass
        rig.end_lease("q", "gone")
        assert rig.recover("q", rig.recoverer(options=options)) == 450
        assert len(rig.scheduled("q")) == 450
        assert rig.unacked("q", "gone") == {}

    def test_its_own_failures_isolate_nothing(self, rig: Rig) -> None:
        """They count as failures, and the deaths of its workers apart."""
        options = Options(delivery_limit=5, retry_wait=0)
        rig.put("q", payload("a"))
        for number in range(3):
            name = f"gone{number}"
            taken(rig.consumer(name, options=options), "q")
            rig.end_lease("q", name)
            rig.recover("q", rig.recoverer(options=options))
        consumer = rig.consumer(options=options)
        for _ in range(5):
            assert rig.dead("q") == []
            [delivery] = taken(consumer, "q")
            consumer.requeue("q", delivery.tag)
        assert rig.dead("q")[0].split(" ", 2)[1] == "8"

    def test_more_losses_than_deliveries(self, rig: Rig) -> None:
        """Somebody else has written that."""
        text = f'{{"redisdelay-deliveries": 1, "redisdelay-lost": 999, {payload("a")[1:]}'
        rig.put("q", text)
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        consumer.requeue("q", delivery.tag)
        assert rig.ready("q") == [with_count(payload("a"), 2, lost=1)]
