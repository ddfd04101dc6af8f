"""A key of ours that holds something else: nothing that should have gone there is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.delivery import Request
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.broker.paging import REQUEUE
from kombu_redisdelay.broker.portions import BYTES_PER_CALL
from tests.broker.rig import Rig, dead_letter, park, payload, taken
from tests.failed import keep_failed

pytestmark = pytest.mark.one_server

HOUR = 3_600_000


@contextmanager
def spoiled(rig: Rig, key: str) -> Iterator[None]:
    """Within the block *key* holds something of somebody else, and using it is an error."""
    rig.client.set(key, "of somebody else")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        yield
    assert rig.client.get(key) == b"of somebody else"
    rig.client.delete(key)


def test_ready_list_of_what_is_due(rig: Rig) -> None:
    rig.schedule("q", payload("a"), 1000, step=3)
    rig.database.advance(2000)
    stored = rig.scheduled("q")
    assert len(stored) == 1
    with spoiled(rig, rig.store.keys("q").ready_at(3)):
        taken(rig.consumer(), "q")
    assert rig.scheduled("q") == stored


def test_unacked_hash(rig: Rig) -> None:
    rig.put("q", payload("a"))
    with spoiled(rig, rig.store.keys("q").unacked("me")):
        taken(rig.consumer(), "q")
    assert rig.ready("q") == [payload("a")]


@pytest.mark.parametrize("kind", ["ready", "ready_at", "schedule", "messages", "unacked", "consumers"])
@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("no_ack", [False, True])
def test_any_key_of_one_of_several_queues(rig: Rig, kind: str, count: int, no_ack: bool) -> None:
    """What the others have is not lost, either."""
    if no_ack and kind in ("unacked", "consumers"):
        return
    queues = [f"q{number}" for number in range(count)]
    bad = queues[count // 2]
    k = rig.store.keys(bad)
    keys = {"ready_at": k.ready_at(3), "unacked": k.unacked("me")}
    for queue in queues:
        rig.schedule(queue, payload("due"), 1000)
        rig.schedule(queue, payload("large") + " " * BYTES_PER_CALL, 2000)
    rig.client.delete(k.schedule, k.messages)
    rig.client.zadd(k.schedule, {"id": rig.database.now_ms()})
    rig.database.advance(HOUR)
    for queue in queues:
        if queue != bad:
            rig.put(queue, payload("ready"), step=3)
    before = {queue: len(rig.ready(queue, 3)) for queue in queues}
    polled = [*queues[:5], bad]
    consumer = rig.consumer()
    with spoiled(rig, keys.get(kind) or getattr(k, kind)):
        consumer.take(Request(queues, 64, no_ack=queues if no_ack else (), polled=polled))
    assert {queue: len(rig.ready(queue, 3)) for queue in queues} == before
    assert all(rig.unacked(queue) == {} for queue in queues)
    assert all(len(rig.scheduled(queue)) + len(rig.ready(queue)) == 2 for queue in queues if queue != bad)


def test_schedule_of_what_is_published(rig: Rig) -> None:
    with spoiled(rig, rig.store.keys("q").schedule):
        rig.schedule("q", payload("a"), HOUR)
    assert rig.all_keys() == [rig.known.encode()]


class TestOfWhatIsHeld:
    """It stays in the unacked hash."""

    @pytest.mark.parametrize("kind", ["schedule", "messages"])
    def test_parked(self, rig: Rig, kind: str) -> None:
        rig.put("q", payload("a"))
        me = rig.consumer()
        [delivery] = taken(me, "q")
        held = rig.unacked("q")
        with spoiled(rig, getattr(rig.store.keys("q"), kind)):
            park(me, delivery, "a", rig.database.now_ms() + HOUR)
        assert rig.unacked("q") == held

    def test_requeued(self, rig: Rig) -> None:
        rig.put("q", payload("a"), step=3)
        me = rig.consumer()
        [delivery] = taken(me, "q")
        held = rig.unacked("q")
        with spoiled(rig, rig.store.keys("q").ready_at(3)):
            me.requeue("q", delivery.tag)
        assert rig.unacked("q") == held

    def test_recovered(self, rig: Rig) -> None:
        rig.put("q", payload("a"), step=3)
        taken(rig.consumer("lost"), "q")
        held = rig.unacked("q", "lost")
        rig.end_lease("q", "lost")
        with spoiled(rig, rig.store.keys("q").ready_at(3)):
            rig.recover("q")
        assert rig.unacked("q", "lost") == held

    @pytest.mark.parametrize("name", ["index", "heads", "messages", "groups", "duplicates"])
    def test_dead_letter(self, rig: Rig, name: str) -> None:
        rig.put("q", "garbage")
        me = rig.consumer()
        [delivery] = taken(me, "q")
        held = rig.unacked("q")
        with spoiled(rig, rig.key("q", f"dead:{name}")):
            dead_letter(me, delivery, "why")
        assert rig.unacked("q") == held

    def test_over_the_delivery_limit(self, rig: Rig) -> None:
        rig.put("q", payload("a"))
        me = rig.consumer(delivery_limit=1)
        [delivery] = taken(me, "q")
        held = rig.unacked("q")
        with spoiled(rig, rig.store.keys("q").dead_index):
            me.requeue("q", delivery.tag)
        assert rig.unacked("q") == held


def test_dead_letters_of_a_damaged_schedule(rig: Rig) -> None:
    rig.schedule("q", payload("a"), HOUR)
    rig.client.delete(rig.store.keys("q").schedule)
    with spoiled(rig, rig.store.keys("q").dead_index):
        rig.mend("q")
    assert rig.client.hlen(rig.store.keys("q").messages) == 1


@pytest.mark.parametrize("name", ["groups", "duplicates", "returned"])
def test_a_key_that_only_the_script_knows_is_named(rig: Rig, name: str) -> None:
    keep_failed(rig.store, "q", "a", payload("a"))
    archive, key = Archive(rig.store, FAILED), getattr(rig.store.keys("q").archive(FAILED), name)
    tasks = list(archive.find_all(["q"], ["a"]))
    rig.client.set(key, "of somebody else")
    with pytest.raises(ResponseError, match=f"WRONGTYPE: key '{key}' holds a string"):
        list(archive.take_out("q", REQUEUE, tasks))
