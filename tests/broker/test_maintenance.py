"""Looking after queues: one round trip at a time, all queues within the interval."""

from __future__ import annotations

from itertools import pairwise

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker import maintenance as maintenance_module
from kombu_redisdelay.broker.lease_policy import LONGEST_WATCHED_LOOK_INTERVAL
from kombu_redisdelay.broker.maintenance import QUEUES_AT_ONCE, Maintenance
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import Chore, Doing, Turn, Upkeep
from kombu_redisdelay.broker.server.scripts import GIVE_BACK
from kombu_redisdelay.broker.server.single import SingleServer
from tests.broker.rig import LEASE_MS, Rig, payload, taken
from tests.clock import Clock

INTERVAL = 10.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def maintenance(rig: Rig, clock: Clock) -> Maintenance:
    return Maintenance(rig.store, rig.recoverer(), Options(), INTERVAL, clock=clock)


@pytest.fixture
def round_trips(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of commands in each packet to the server of *rig*. A thread that an earlier test left behind
    talks to another one."""
    packets: list[int] = []
    call_all = SingleServer.call_all

    def counted(self: SingleServer, *commands: object) -> list[object]:
        if self is rig.store.server:
            packets.append(len(commands))
        return call_all(self, *commands)  # type: ignore[arg-type]

    monkeypatch.setattr(SingleServer, "call_all", counted)
    return packets


def test_one_round_trip_at_a_time(
    rig: Rig, maintenance: Maintenance, round_trips: list[int], clock: Clock
) -> None:
    queues = [f"q{number}" for number in range(3 * QUEUES_AT_ONCE)]
    for queue in queues[::10]:
        rig.put(queue, payload("m"))
        taken(rig.consumer(f"lost {queue}"), queue)
        rig.end_lease(queue, f"lost {queue}")
    rig.load(GIVE_BACK)
    while maintenance.round_trip(queues):
        pass
    rig.wait(60)
    maintenance._known.clear()
    maintenance.queues_have_changed()
    recovered = []
    more = True
    while more:
        round_trips.clear()
        more = maintenance.round_trip(queues)
        assert len(round_trips) <= 1
        recovered.append(sum(bool(rig.ready(queue)) for queue in queues[::10]))
    assert recovered[-1] == len(queues[::10])


@pytest.mark.many_messages
def test_all_within_the_interval(rig: Rig, maintenance: Maintenance, clock: Clock) -> None:
    queues = [f"q{number}" for number in range(4 * QUEUES_AT_ONCE)]
    while maintenance.round_trip(queues):
        pass
    for queue in queues:
        rig.client.delete(rig.store.keys(queue).wake)
        rig.client.zadd(rig.store.keys(queue).consumers, {"gone": 1})
    rig.wait(60)
    left = []
    for _ in range(9):
        clock.now += INTERVAL / 4
        while maintenance.round_trip(queues):
            pass
        rig.wait(60)
        left.append(sum(rig.client.exists(rig.store.keys(queue).consumers) for queue in queues))
    assert left[-1] == 0
    # Not all at once.
    assert max(before - after for before, after in pairwise(left)) <= QUEUES_AT_ONCE


def test_it_is_not_time_yet(maintenance: Maintenance, round_trips: list[int], clock: Clock) -> None:
    while maintenance.round_trip(["q"]):
        pass
    round_trips.clear()
    clock.now += INTERVAL - 1
    assert maintenance.round_trip(["q"]) is False
    assert round_trips == []
    maintenance.queues_have_changed()
    assert maintenance.round_trip(["q"]) is False
    assert maintenance.round_trip(["q", "new"]) is False
    maintenance.queues_have_changed()
    assert maintenance.round_trip(["q", "new"]) is True
    assert len(round_trips) == 1


@pytest.mark.many_messages
def test_new_queues_again_and_again_do_not_keep_it_from_the_others(
    rig: Rig, maintenance: Maintenance, clock: Clock
) -> None:
    queues = [f"q{number}" for number in range(2 * QUEUES_AT_ONCE)]
    while maintenance.round_trip(queues):
        pass
    for queue in queues:
        rig.client.zadd(rig.store.keys(queue).consumers, {"gone": 1})
    for number in range(60):
        clock.now += 1
        rig.wait(1)
        maintenance.queues_have_changed()
        while maintenance.round_trip([*queues, f"new{number}"]):
            pass
    assert not any(rig.client.exists(rig.store.keys(queue).consumers) for queue in queues)


def test_what_the_server_refuses_for_one_queue_ends_the_step_only(
    rig: Rig, maintenance: Maintenance, clock: Clock
) -> None:
    rig.client.set(rig.store.keys("bad").consumers, "of somebody else")
    with pytest.raises(ResponseError, match="holds a string"):
        maintenance.round_trip(["bad"])
    rig.client.delete(rig.store.keys("bad").consumers)
    clock.now += INTERVAL
    while maintenance.round_trip(["bad"]):
        pass


def test_more_often_while_a_lease_is_not_renewed(
    rig: Rig, maintenance: Maintenance, round_trips: list[int], clock: Clock
) -> None:
    """So that its messages are back soon after it has ended."""
    rig.client.zadd(rig.store.keys("q").consumers, {"somebody": rig.database.now_ms() + 1000})
    while maintenance.round_trip(["q"]):
        pass
    clock.now += LONGEST_WATCHED_LOOK_INTERVAL
    assert maintenance.round_trip(["q"]) is True
    while maintenance.round_trip(["q"]):
        pass
    rig.client.zadd(rig.store.keys("q").consumers, {"somebody": rig.database.now_ms() + LEASE_MS})
    clock.now += LONGEST_WATCHED_LOOK_INTERVAL
    while maintenance.round_trip(["q"]):
        pass
    clock.now += LONGEST_WATCHED_LOOK_INTERVAL
    assert maintenance.round_trip(["q"]) is False


def test_a_chore_is_a_row(rig: Rig, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """How often it is done, and for how many queues, its row says."""
    done: list[tuple[str, int, bool]] = []

    def chore(name: str, **row: int) -> Chore:
        def begin(upkeep: Upkeep) -> Doing:
            def do(turn: Turn) -> None:
                done.append((name, len(turn.queues), turn.are_new))
                if row.get("is_for_all") and turn.are_new:
                    upkeep.hurry(1.0)

            return do

        return Chore(name, begin, **row)  # type: ignore[arg-type]

    rows = (chore("all", is_for_all=True), chore("each"), chore("third", rounds=3))
    monkeypatch.setattr(maintenance_module, "CHORES", rows)
    maintenance = Maintenance(rig.store, rig.recoverer(), Options(), INTERVAL, clock=clock)
    queues = [f"q{number}" for number in range(QUEUES_AT_ONCE + 1)]

    def after(seconds: float) -> list[tuple[str, int, bool]]:
        clock.now += seconds
        done.clear()
        while maintenance.round_trip(queues):
            pass
        return done

    first, last = QUEUES_AT_ONCE, 1
    assert after(0) == [
        *(("each", first, True), ("third", first, True)),
        *(("each", last, True), ("third", last, True), ("all", last, True)),
    ]
    # The next turn was to be soon; then each portion has its part of the interval.
    assert after(0.5) == [("each", first, False), ("third", first, False)]
    assert after(INTERVAL / 2 - 1) == []
    assert after(1) == [("each", last, False), ("third", last, False), ("all", last, False)]
    assert after(INTERVAL / 2) == [("each", first, False)]
    assert after(INTERVAL / 2) == [("each", last, False), ("all", last, False)]
