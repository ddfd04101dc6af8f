"""A message that came back again and again is taken and held alone, so that what is beside it does not die
with it."""

from __future__ import annotations

import pytest

from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import BYTES_PER_CALL
from tests.broker.rig import Rig, payload, taken, texts, with_count

SUSPECT = with_count(payload("suspect"), 3)


@pytest.mark.parametrize(("delivery_limit", "after"), [(None, 3), (20, 3), (4, 3), (3, 2), (2, 1), (1, 1)])
def test_after_three_failures_and_before_the_limit(delivery_limit: int | None, after: int) -> None:
    assert Options(delivery_limit=delivery_limit).alone_after == after


class TestTake:
    def test_an_idle_consumer_takes_nothing_beside_it(self, rig: Rig) -> None:
        rig.put("q", SUSPECT, payload("a"), payload("b"))
        me = rig.consumer()
        assert texts(taken(me, "q")) == [SUSPECT]
        assert rig.tokens("q") == 1, "for the others"

    def test_it_is_the_last_that_is_taken(self, rig: Rig) -> None:
        rig.put("q", payload("a"), SUSPECT, payload("b"))
        assert texts(taken(rig.consumer(), "q")) == [payload("a"), SUSPECT]
        assert rig.ready("q") == [payload("b")]

    def test_also_of_a_queue_among_others(self, rig: Rig) -> None:
        rig.put("q", SUSPECT)
        rig.put("other", payload("a"))
        assert texts(taken(rig.consumer(), "q", "other")) == [SUSPECT]
        assert rig.ready("other") == [payload("a")]

    def test_a_large_one(self, rig: Rig) -> None:
        large = with_count(payload("suspect", large="x" * BYTES_PER_CALL), 3)
        rig.schedule("q", large, 1)
        rig.database.advance(10)
        assert texts(taken(rig.consumer(), "q")) == [large]

    def test_consumed_without_acks_it_is_like_any_other(self, rig: Rig) -> None:
        rig.put("q", payload("a"), SUSPECT)
        assert texts(taken(rig.consumer(), "q", no_ack=["q"])) == [payload("a"), SUSPECT]


@pytest.mark.parametrize("limit", [2, 5, 20])
def test_only_the_poison_dies_of_it(rig: Rig, limit: int) -> None:
    """Every worker that runs the poison is killed, with all that it had prefetched."""
    innocents = {f"innocent{n}" for n in range(6)}
    rig.put("q", payload("poison"), *(payload(id) for id in sorted(innocents)))
    done: set[str] = set()
    for attempt in range(20 * limit):
        worker = rig.consumer(f"worker{attempt}", delivery_limit=limit)
        deliveries = taken(worker, "q", limit=4)
        if not deliveries:
            break
        for delivery in deliveries:
            if b"poison" in delivery.payload:
                rig.end_lease("q", worker.name)
                rig.recover("q", rig.recoverer(delivery_limit=limit))
                break
            [id] = [id for id in innocents if id.encode() in delivery.payload]
            worker.ack("q", delivery.tag)
            done.add(id)
    assert done == innocents
    [letter] = rig.dead("q")
    assert f" {limit} 0 delivery limit of {limit} reached\n" in letter
    assert letter.endswith("\n" + payload("poison"))
