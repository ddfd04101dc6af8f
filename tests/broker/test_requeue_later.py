"""From held to scheduled in one step, for a delivery that has failed."""

from __future__ import annotations

import pytest

from tests.broker.rig import Rig, payload, taken, texts, with_count

HOUR = 3_600_000


def test_is_scheduled_with_its_step_and_a_higher_count(rig: Rig) -> None:
    rig.put("q", payload("a"), step=3)
    consumer = rig.consumer()
    [a] = taken(consumer, "q")
    assert consumer.requeue("q", a.tag, HOUR)
    assert rig.scheduled("q") == ["3:" + with_count(payload("a"), 1)]
    assert (rig.unacked("q"), rig.ready("q", 3)) == ({}, [])


def test_comes_when_it_is_due_and_not_before(rig: Rig) -> None:
    rig.put("q", payload("a"))
    consumer = rig.consumer()
    for _ in range(3):
        [a] = taken(consumer, "q")
        consumer.requeue("q", a.tag, HOUR)
        rig.database.advance(HOUR - HOUR // 4)
        assert taken(consumer, "q") == []
        rig.database.advance(HOUR // 2)
    assert texts(taken(consumer, "q")) == [with_count(payload("a"), 3)]


def test_wakes_a_consumer_that_waits_for_something_later(rig: Rig) -> None:
    rig.schedule("q", payload("later"), 2 * HOUR)
    rig.put("q", payload("a"))
    consumer = rig.consumer()
    [a] = taken(consumer, "q")
    rig.use_up_token("q")
    consumer.requeue("q", a.tag, HOUR)
    assert rig.tokens("q") == 1


def test_another_message_with_the_id_stays(rig: Rig) -> None:
    rig.put("q", payload("a"))
    consumer = rig.consumer()
    [a] = taken(consumer, "q")
    rig.schedule("q", payload("other"), 2 * HOUR, id="a")
    consumer.requeue("q", a.tag, HOUR)
    assert rig.scheduled("q") == ["0:" + with_count(payload("a"), 1), "0:" + payload("other")]


def test_ends_in_the_dead_letters(rig: Rig) -> None:
    rig.put("q", payload("a"))
    consumer = rig.consumer(delivery_limit=2)
    [a] = taken(consumer, "q")
    assert consumer.requeue("q", a.tag, 0)
    [a] = taken(consumer, "q")
    assert consumer.requeue("q", a.tag, 0)
    assert (rig.scheduled("q"), rig.unacked("q")) == ([], {})
    [letter] = rig.dead("q")
    assert letter.split(" ", 1)[1] == "2 0 delivery limit of 2 reached\n" + payload("a")


def test_what_is_not_held_any_more_is_left_alone(rig: Rig) -> None:
    rig.put("q", payload("a"))
    consumer = rig.consumer()
    [a] = taken(consumer, "q")
    rig.ack(consumer, "q", a.tag)
    assert not consumer.requeue("q", a.tag, HOUR)
    assert rig.scheduled("q") == []


def test_a_queue_that_expires_lives_on(rig: Rig) -> None:
    rig.expires_ms["q"] = HOUR
    rig.put("q", payload("a"))
    consumer = rig.consumer()
    [a] = taken(consumer, "q")
    consumer.requeue("q", a.tag, HOUR // 2)
    keys = rig.store.keys("q")
    assert 0 < rig.client.pttl(keys.schedule) <= HOUR
    assert 0 < rig.client.pttl(keys.messages) <= HOUR


@pytest.mark.parametrize("key", ["schedule", "messages", "dead:index"])
def test_a_key_of_a_wrong_type_leaves_it_held(rig: Rig, key: str) -> None:
    rig.put("q", payload("a"))
    consumer = rig.consumer(delivery_limit=1 if key == "dead:index" else 0)
    [a] = taken(consumer, "q")
    rig.client.delete(rig.key("q", key))
    rig.client.set(rig.key("q", key), "another program's")
    with pytest.raises(Exception, match=key):
        consumer.requeue("q", a.tag, HOUR)
    assert rig.unacked("q") == {a.tag: "0:" + payload("a")}
