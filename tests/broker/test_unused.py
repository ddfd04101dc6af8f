"""What nobody uses any more is forgotten, and nothing else."""

from __future__ import annotations

import pytest

from kombu_redisdelay.broker import known_queues
from kombu_redisdelay.broker.known_queues import CONSUMERS_PER_SCRIPT, UNUSED_FOR, forget_unused
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.broker.store import KNOWN_FOR
from tests.broker.rig import Rig, dead_letter, payload, taken

HOUR = 3_600_000
UNUSED_MS = round(UNUSED_FOR * 1000)


def tidy_later(rig: Rig) -> int:
    """As a process that has not noted the queues itself does after a while."""
    rig.database.advance(UNUSED_MS + 1000)
    return finish(forget_unused(rig.new_store()))


def test_a_queue_with_nothing_in_it_is_forgotten(rig: Rig) -> None:
    rig.schedule("q", "m", HOUR, id="m")
    me = rig.consumer()
    rig.database.advance(HOUR)
    [delivery] = taken(me, "q")
    assert rig.ack(me, "q", delivery.tag)
    rig.end_lease("q")
    assert rig.store.queues() == ["q"]
    assert tidy_later(rig) == 1
    assert rig.store.queues() == []
    assert rig.all_keys() == [rig.store.keys("q").history.encode()]


@pytest.mark.parametrize("place", ["ready", "sorted by key", "scheduled", "unacked", "dead", "consumer"])
def test_what_is_in_use_stays(rig: Rig, place: str) -> None:
    rig.store.remember("q")
    rig.put("q", payload("m"), step=3)
    me = rig.consumer()
    if place == "scheduled":
        rig.store.purge("q")
        rig.schedule("q", payload("m"), 2 * UNUSED_MS)
    elif place == "sorted by key":
        FairQueues(rig.store).switch_on(["q"])
        taken(me, "q", limit=0)
        assert rig.ready("q", 3) == []
        assert rig.store.exists("q")
    elif place != "ready":
        [delivery] = taken(me, "q")
        if place == "dead":
            dead_letter(me, delivery, "why")
        elif place == "consumer":
            assert rig.ack(me, "q", delivery.tag)
        rig.end_lease("q")
    before = {key: rig.client.type(key) for key in rig.all_keys()}
    rig.database.advance(UNUSED_MS + 1000)
    if place == "consumer":
        rig.client.zadd(rig.store.keys("q").consumers, {"me": rig.database.now_ms() + HOUR})
    store = rig.new_store()
    assert finish(forget_unused(store)) == 1
    assert store.queues() == ["q"]
    left = {key: rig.client.type(key) for key in rig.all_keys()}
    if place != "dead":
        assert left == before
    assert finish(forget_unused(store)) == 0, "it was noted again"


def test_nothing_is_left_of_limits_that_were_lost(rig: Rig) -> None:
    """The hash `control` of a fair queue."""
    rig.store.remember("q")
    for name in ("limited", "active", "unacked-keys"):
        rig.client.hset(rig.key("q", name), "a", "1")
    for name in ("earlier", "alarms"):
        rig.client.zadd(rig.key("q", name), {"a": 1})
    assert tidy_later(rig) == 1
    assert rig.all_keys() == []


def test_what_was_noted_lately_is_not_looked_at(rig: Rig) -> None:
    rig.store.remember("q")
    rig.database.advance(UNUSED_MS - 1000)
    assert finish(forget_unused(rig.new_store())) == 0
    assert rig.store.queues() == ["q"]


def test_noted_while_it_is_looked_at(rig: Rig) -> None:
    rig.store.remember("q")
    rig.database.advance(UNUSED_MS + 1000)
    steps = forget_unused(rig.new_store())
    next(steps)
    next(steps)
    rig.new_store().remember("q")
    finish(steps)
    assert rig.store.queues() == ["q"]


def test_whoever_believes_a_queue_noted_is_right() -> None:
    assert UNUSED_FOR > KNOWN_FOR


def test_many_queues_and_many_consumers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_queues, "UNUSED_AT_ONCE", 10)
    rig.store.remember(*(f"q{number}" for number in range(25)))
    consumers = {f"gone{number}": 1 for number in range(CONSUMERS_PER_SCRIPT + 1)}
    rig.client.zadd(rig.store.keys("q0").consumers, consumers)
    rig.database.advance(UNUSED_MS + 1000)
    store = rig.new_store()
    assert [finish(forget_unused(store)) for _ in range(4)] == [10, 10, 5, 0]
    assert store.queues() == ["q0"]
    assert tidy_later(rig) == 1
    assert rig.all_keys() == []


def test_a_name_that_is_no_text_is_nobodys(rig: Rig) -> None:
    rig.client.zadd(rig.known, {b"\xff": 1})
    rig.store.remember("q")
    assert rig.store.queues() == ["q"]
    assert tidy_later(rig) == 2
    assert rig.all_keys() == []


def test_a_name_from_an_enum(rig: Rig) -> None:
    from enum import Enum

    class Queue(str, Enum):
        MAIL = "mail"

    rig.store.remember(Queue.MAIL)
    assert rig.store.queues() == ["mail"]
