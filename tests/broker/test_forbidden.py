"""The user of the broker may not run one of the commands of the scripts any more, or may not write to a key:
nothing is lost, and no copies are made as long as that lasts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice

import pytest
from redis.exceptions import RedisError

from kombu_redisdelay.broker.delivery import Delivery
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.broker.server.scripts import SCRIPTS
from tests.broker.database import FAKE, Database
from tests.broker.lost_keys import GUESTS, ORDERS, TENANTS, Fleet, ids_in
from tests.broker.rig import Rig, again_at, dead_letter, park
from tests.permissions import documented_rules

COMMANDS = sorted(
    {name for script in SCRIPTS.values() for name in re.findall(r"redis\.p?call\(\s*'(\w+)'", script.text)}
)
#: These put messages where they belong.
PUTTING = {"HSET", "HSETNX", "LPUSH", "RPUSH", "ZADD"}

TRIES = 3

pytestmark = [pytest.mark.one_server, pytest.mark.many_messages]


@pytest.fixture(autouse=True)
def tells_before(database: Database) -> None:
    if database.name == FAKE or database.client.info("server")["redis_version"] < "7":
        pytest.skip("it does not tell before it refuses a command")


@contextmanager
def without(rig: Rig, *rules: str) -> Iterator[None]:
    """Within the block the user of the broker has these rules besides."""
    rig.client.execute_command("ACL", "SETUSER", "shop", *rules)
    try:
        yield
    finally:
        rig.client.execute_command("ACL", "SETUSER", "shop", "reset", *documented_rules("*"))


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=[] if name in PUTTING else [pytest.mark.thorough]) for name in COMMANDS],
)
def test_a_command(rig: Rig, command: str) -> None:
    fleet = Fleet(rig)
    with without(rig, f"-{command}"):
        work_and_lose_nothing(fleet)


@pytest.mark.parametrize("writable", ["redisdelay:*", "[ot]*", "redisdelay:{orders}:*"])
def test_keys_that_may_only_be_read(rig: Rig, writable: str) -> None:
    """Of the others: ready lists, or all but these, or what belongs to some queues."""
    fleet = Fleet(rig)
    with without(rig, "resetkeys", "%R~*", f"~{writable}"):
        work_and_lose_nothing(fleet)


def work_and_lose_nothing(fleet: Fleet) -> None:
    before = copies(fleet)
    for _ in range(TRIES):
        for act in acts(fleet):
            with suppress(RedisError):
                act()
    after = copies(fleet)
    assert sorted(before.keys() - after.keys() - fleet.ran.keys()) == []
    assert {id: (before[id], count) for id, count in after.items() if count > before[id] + 1} == {}


def copies(fleet: Fleet) -> Counter[str]:
    """How many times each message is stored."""
    return Counter(id for _, text in fleet.texts() for id in ids_in(text))


def acts(fleet: Fleet) -> Iterator[Callable[[], object]]:
    """What consumers, maintenance and operators do. None of it removes a message that did not run."""
    rig, me = fleet.rig, fleet.me
    yield lambda: fleet.turns(1, seconds=30)
    for number, delivery in enumerate(fleet.held):
        ways = endings(fleet, delivery)
        yield ways[number % len(ways)]
    yield me.confirm_acks
    yield fleet.requeue_all
    for queue in (ORDERS, TENANTS):
        yield partial(schedule_ready, rig, queue)
        yield partial(reschedule, rig, queue, 7_000_000)
        yield partial(reschedule, rig, queue, -1)
    yield lambda: fleet.turns(1, seconds=90)
    yield lambda: fleet.fair.switch_off([GUESTS])
    yield lambda: fleet.turns(1)
    yield lambda: fleet.fair.switch_on([GUESTS])


def endings(fleet: Fleet, delivery: Delivery) -> list[Callable[[], object]]:
    """How a message leaves its consumer."""
    me, queue, tag = fleet.me, delivery.queue, delivery.tag
    due_ms = fleet.rig.database.now_ms() + 60_000
    return [
        partial(me.requeue, queue, tag),
        partial(me.give_back, queue, tag),
        partial(me.fail, queue, tag),
        partial(me.defer_unknown, queue, tag, f"id{tag}", "tasks.unknown"),
        partial(park, me, delivery, f"id{tag}", due_ms),
        partial(dead_letter, me, delivery, "unusable"),
        partial(me.ack, queue, tag),
    ]


def schedule_ready(rig: Rig, queue: str) -> None:
    ready = ReadyLists(rig.store)
    some = list(islice(ready.iter(queue), 3))
    list(ready.schedule_all(queue, some, again_at(rig.database.now_ms() + 3_000_000)))


def reschedule(rig: Rig, queue: str, in_ms: int) -> None:
    schedule, due_ms = Schedule(rig.store), rig.database.now_ms() + in_ms
    some = list(islice(schedule.iter(queue, None, None), 3))
    list(schedule.reschedule_all(queue, some, lambda each: (each.stored, due_ms)))
