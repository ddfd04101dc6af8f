"""What becomes due while its consumer has no room is moved all the same."""

from __future__ import annotations

import logging

import pytest

from kombu_redisdelay.broker.mover import FEW_QUEUES, LOOKS, PAUSE, SHORTEST_INTERVAL, Mover
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL
from kombu_redisdelay.broker.store import Store
from tests.broker.database import Database, FakeDatabase
from tests.broker.rig import SEPARATOR, STEPS, Rig, payload


def mover_of(store: Store, *queues: str) -> Mover:
    mover = Mover(store)
    mover.queues = queues
    return mover


def look(mover: Mover) -> list[float]:
    """Have *mover* make a whole look, on a slow machine a few. Returns the pauses in it."""
    pauses = []
    while (pause := mover.step()) < SHORTEST_INTERVAL / 2:
        pauses.append(pause)
    return pauses


def attend(rig: Rig, queue: str, *consumers: str) -> None:
    ends = rig.database.now_ms() + 60_000
    rig.client.zadd(rig.store.keys(queue).consumers, dict.fromkeys(consumers, ends))


def test_moves_what_is_due_of_each_priority_and_wakes(rig: Rig) -> None:
    for queue in ("a", "b"):
        attend(rig, queue, "me")
        for step in STEPS:
            rig.schedule(queue, f"{queue}{step}", 100, step=step)
    rig.schedule("a", "later", 100_000)
    rig.database.advance(200)
    for queue in ("a", "b"):
        rig.use_up_token(queue)
    look(mover_of(rig.store, "a", "b"))
    for queue in ("a", "b"):
        assert [rig.ready(queue, step) for step in STEPS] == [[f"{queue}{step}"] for step in STEPS]
        assert rig.tokens(queue) == 1
    assert rig.scheduled("a") == ["0:later"]


def test_leaves_it_to_a_consumer_that_is_free(rig: Rig) -> None:
    rig.schedule("q", "due", 100)
    rig.database.advance(200)
    mover = mover_of(rig.store, "q")
    mover.leave_it(1000)
    look(mover)
    assert not mover.is_needed
    assert rig.ready("q") == []
    mover.leave_it(0)
    look(mover)
    assert rig.ready("q") == ["due"]


def test_a_backlog_goes_on_at_a_pace_that_all_consumers_share(rig: Rig) -> None:
    for number in range(MESSAGES_PER_CALL + 10):
        rig.schedule("q", f"{number}", 100)
    rig.database.advance(200)
    attend(rig, "q", "a", "b", "c")
    assert 3 * PAUSE in look(mover_of(rig.store, "q"))
    assert len(rig.ready("q")) == MESSAGES_PER_CALL + 10


def test_large_messages_go_one_at_a_time(rig: Rig) -> None:
    large = [payload(id, of=BYTES_PER_CALL * "x") for id in "ab"]
    for text in large:
        rig.schedule("q", text, 100, id=text[-1])
    rig.database.advance(200)
    mover = mover_of(rig.store, "q")
    # The look at the due times, and the first call.
    mover.step()
    mover.step()
    assert len(rig.ready("q")) == 1
    look(mover)
    assert sorted(rig.ready("q")) == large


def test_three_looks_are_at_all_of_many_queues(rig: Rig) -> None:
    queues = [str(number) for number in range(3 * FEW_QUEUES + 1)]
    for queue in queues:
        rig.schedule(queue, queue, 100)
    rig.database.advance(200)
    mover = mover_of(rig.store, *queues)
    for _ in range(LOOKS):
        look(mover)
    assert [rig.ready(queue) for queue in queues] == [[queue] for queue in queues]


def test_a_queue_that_expires_lives_no_longer_for_it(rig: Rig) -> None:
    keys = rig.store.keys("q")
    rig.expires_ms["q"] = 60_000
    rig.schedule("q", "due", 100)
    attend(rig, "q", "me")
    rig.database.advance(200)
    for key in (*keys.scheduling, keys.consumers):
        rig.client.pexpire(key, 30_000)
    look(mover_of(rig.store, "q"))
    assert 0 < rig.client.pttl(keys.ready) <= 30_000


def test_a_queue_that_has_gone_does_not_come_back(rig: Rig) -> None:
    look(mover_of(rig.store, "gone"))
    assert rig.database.all_keys("*gone*") == []


def test_one_broken_queue_stops_no_other(rig: Rig) -> None:
    for name in ("schedule", "messages"):
        rig.schedule("broken", "due", 100)
        rig.schedule("q", name, 100)
        rig.database.advance(200)
        rig.client.delete(key := getattr(rig.store.keys("broken"), name))
        rig.client.set(key, "of the wrong type")
        look(mover_of(rig.store, "broken", "q"))
        assert rig.ready("q")[-1] == name
        rig.client.delete(*rig.store.keys("broken").scheduling)


def test_ids_without_a_message_are_told_by_another_thread(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.schedule("q", "due", 100)
    rig.database.advance(200)
    rig.client.delete(rig.store.keys("q").messages)
    mover = mover_of(rig.store, "q")
    look(mover)
    assert caplog.messages == []
    mover.tell()
    mover.tell()
    assert caplog.record_tuples == [
        (
            "kombu_redisdelay.broker.mover",
            logging.ERROR,
            "Skipped 1 scheduled id(s) of queue 'q' that had no message",
        )
    ]


def test_queues_of_different_slots(database: Database) -> None:
    if isinstance(database, FakeDatabase):
        pytest.skip("a slot is the same for all")
    store = Store(database.new_server(), "", STEPS, SEPARATOR)
    rig = Rig(database, prefix="")
    queues = [f"q{number}" for number in range(8)]
    for queue in queues:
        rig.schedule(queue, queue, 100)
    database.advance(200)
    look(mover_of(store, *queues))
    assert [rig.ready(queue) for queue in queues] == [[queue] for queue in queues]
