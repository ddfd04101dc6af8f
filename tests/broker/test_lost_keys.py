"""A key that is lost costs only what was in it: the rest runs, nothing stands still for ever, and what is
published later runs."""

from __future__ import annotations

import re
from random import Random

import pytest

from kombu_redisdelay.broker.unlisted import INTERVAL
from tests.broker.lost_keys import HOUR_MS, ORDERS, QUEUES, UNIQUE, Fleet, documented
from tests.broker.rig import Rig
from tests.environments import ENVIRONMENT, THOROUGH

ROWS = documented()

#: These wait until an operator ends the pause of their key.
PAUSED = {"tenants-paused-waits0", "tenants-paused-waits1"}

#: What a queue without messages may have.
LEFT = re.compile(
    r".*}:(consumers|history|wake|duplicates|unknown|failed.*|dead.*|finished.*|claim:.*|tats"
    r"|unacked:(me|old))|redisdelay:known-queues"
)


@pytest.mark.many_messages
@pytest.mark.one_server
@pytest.mark.parametrize("is_whole", [True, False], ids=["key", "member"])
@pytest.mark.parametrize("row", ROWS)
def test_costs_only_what_was_in_it(rig: Rig, row: str, is_whole: bool) -> None:
    random = Random(f"{row} {is_whole}")
    fleet = Fleet(rig)
    choices = losses(fleet, row, is_whole)
    assert choices, "nothing of this kind is there to be lost"
    random.shuffle(choices)
    for choice in choices if ENVIRONMENT == THOROUGH else choices[:1]:
        rig.database.reset()
        lose_and_live_on(Fleet(Rig(rig.database)), *choice)


@pytest.mark.many_messages
@pytest.mark.one_server
@pytest.mark.parametrize("seed", [38, *(range(30) if ENVIRONMENT == THOROUGH else ())])
def test_several_at_once(rig: Rig, seed: int) -> None:
    random, fleet = Random(seed), Fleet(rig)
    first, *others = random.sample(sorted(map(bytes.decode, rig.all_keys())), random.randint(2, 6))
    for key in others:
        fleet.lose(key, None)
    lose_and_live_on(fleet, first, None)


def losses(fleet: Fleet, row: str, is_whole: bool) -> list[tuple[str, int | None]]:
    """The keys of a row, each with the number of a member that is lost of it, ``None`` for all."""
    keys = fleet.keys(ROWS[row])
    if is_whole:
        return [(key, None) for key in keys]
    return [(key, number) for key in keys for number in range(len(fleet.members(key)))]


def lose_and_live_on(fleet: Fleet, key: str, number: int | None) -> None:
    what = f"{key} without {fleet.members(key)[number]!r}" if number is not None else key
    fleet.lose(key, number)
    to_run = fleet.ids()
    for number in range(2):
        fleet.turns(2, seconds=30)
        fleet.publish_later(number)
        fleet.fail(ORDERS, f"later{number}")
        fleet.make_dead(ORDERS, f"later{number}")
    fleet.turns(3, seconds=90)
    fleet.turns(4, seconds=max(INTERVAL, HOUR_MS / 1000) + 60)
    still = (to_run | fleet.later) - set(fleet.ran) - PAUSED
    assert not still, f"{what}: {sorted(still)} stand still"
    fleet.allow_all()
    fleet.turns(3)
    assert not to_run - set(fleet.ran), f"{what}: what was paused stands still"
    for name in UNIQUE:
        assert fleet.publish_unique(name, 9), f"{what}: the unique key {name} is not free"
    assert fleet.publish_guest(9), f"{what}: the unique key of a guest is not free"
    fleet.requeue_all()
    fleet.turns(3)
    kept = {f"orders-{state}-later{number}" for state in ("failed", "dead") for number in range(2)}
    assert not ({f"unique-{name}9" for name in (*UNIQUE, "guest")} | kept) - set(fleet.ran), what
    assert fleet.counts() == [0] * len(QUEUES), what
    left = [key for key in map(bytes.decode, fleet.rig.all_keys()) if not LEFT.fullmatch(key)]
    assert [key for key in left if not key.endswith("}:control")] == [], what
