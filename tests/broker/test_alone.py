"""A message that many workers held when they died is taken and held alone: so what is beside it does not die
with it, and the guilty one is found. A failure that is known to be of one message isolates nothing."""

from __future__ import annotations

import pytest

from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import BYTES_PER_CALL
from tests.broker.rig import Rig, payload, taken, texts, with_count

SUSPECT = with_count(payload("suspect"), 3, lost=3)


@pytest.mark.parametrize(("delivery_limit", "after"), [(None, 3), (9, 3), (4, 3), (3, 2), (2, 1), (1, 0)])
def test_after_three_deaths_and_fewer_than_the_limit(delivery_limit: int | None, after: int) -> None:
    assert Options(delivery_limit=delivery_limit).isolated_after == after


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
        large = with_count(payload("suspect", large="x" * BYTES_PER_CALL), 3, lost=3)
        rig.schedule("q", large, 1)
        rig.database.advance(10)
        assert texts(taken(rig.consumer(), "q")) == [large]

    def test_what_has_failed_itself_is_like_any_other(self, rig: Rig) -> None:
        failed = with_count(payload("failed"), 8, lost=2)
        rig.put("q", failed, payload("a"))
        assert texts(taken(rig.consumer(), "q")) == [failed, payload("a")]

    def test_none_is_held_alone_if_each_death_is_a_failure(self, rig: Rig) -> None:
        rig.put("q", SUSPECT, payload("a"))
        assert texts(taken(rig.consumer(delivery_limit=1), "q")) == [SUSPECT, payload("a")]

    def test_consumed_without_acks_it_is_like_any_other(self, rig: Rig) -> None:
        rig.put("q", payload("a"), SUSPECT)
        assert texts(taken(rig.consumer(), "q", no_ack=["q"])) == [payload("a"), SUSPECT]


@pytest.mark.parametrize("limit", [2, 5, 9])
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
    # Those before it was held alone are no failures.
    deaths = limit + Options(delivery_limit=limit).isolated_after
    assert f" {deaths} 0 delivery limit of {limit} reached\n" in letter
    assert letter.endswith("\n" + payload("poison"))


def test_ten_workers_that_are_killed_in_a_row_bury_nothing(rig: Rig) -> None:
    """Somebody kills worker after worker, whatever they do. Those messages are innocent that never run."""
    everything = {f"m{n}" for n in range(8)}
    rig.put("q", *(payload(id) for id in sorted(everything)))
    options = Options()
    for number in range(10):
        worker = rig.consumer(f"worker{number}", options=options)
        assert taken(worker, "q", limit=4)
        rig.end_lease("q", worker.name)
        rig.recover("q", rig.recoverer(options=options))
    assert rig.dead("q") == []
    # The waits after a failure are over.
    rig.database.advance(120_000)
    survivor, done = rig.consumer("survivor", options=options), 0
    while deliveries := taken(survivor, "q"):
        done += len(deliveries)
    assert done == len(everything)
