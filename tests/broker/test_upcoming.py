"""What is due first in many queues."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from kombu_redisdelay.broker import schedule as module
from kombu_redisdelay.broker.schedule import Schedule, ScheduleCursor, upcoming
from tests.broker.rig import Rig, payload

HOUR = 3_600_000
QUEUES = [f"q{number}" for number in range(5)]


def test_in_due_order(rig: Rig) -> None:
    for number in range(60):
        rig.schedule(QUEUES[number * number % 5], payload(str(number)), HOUR + 1000 * number)
    assert [found.payload.decode() for found in upcoming(rig.store, [*QUEUES, "empty"])] == [
        payload(str(number)) for number in range(60)
    ]


@pytest.mark.parametrize("last_first", [False, True])
def test_from_each_place_on(rig: Rig, last_first: bool) -> None:
    """Many are due at the same time: a place is between two of them."""
    at_ms = rig.database.now_ms() + HOUR
    for number in range(24):
        rig.schedule(QUEUES[number % 3], payload(str(number)), HOUR)
    for queue in QUEUES[:3]:
        key = rig.key(queue, "schedule")
        for number, name in enumerate(rig.client.zrange(key, 0, -1)):
            rig.client.zadd(key, {name: at_ms + 1000 * (number // 3)})
    found = list(upcoming(rig.store, QUEUES, last_first=last_first))
    assert len(found) == 24
    for low, high in ((None, None), (at_ms + 1000, None), (None, at_ms + 2000), (at_ms + 1000, at_ms + 2000)):
        within = [each for each in found if (low or 0) <= each.due_ms < (high or 2 * at_ms)]
        for count, each in enumerate(found, 1):
            place = ScheduleCursor(each.due_ms, each.queue, each.member)
            expected = [other for other in found[count:] if other in within]
            assert list(upcoming(rig.store, QUEUES, low, high, place, last_first=last_first)) == expected


def test_the_other_order(rig: Rig) -> None:
    for number in range(60):
        rig.schedule(QUEUES[number % 5], payload(str(number)), HOUR + 1000 * (number // 10))
    found = list(upcoming(rig.store, QUEUES))
    assert list(upcoming(rig.store, QUEUES, last_first=True)) == found[::-1]


def test_of_no_queue(rig: Rig) -> None:
    assert list(upcoming(rig.store, ["empty"])) == []


def test_a_queue_is_read_when_it_is_its_turn(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, queue in enumerate(QUEUES):
        rig.schedule(queue, payload(queue), HOUR + 1000 * number)
    read: list[str] = []

    class Noting(Schedule):
        def iter(self, queue: str, *place: Any):  # type: ignore[no-untyped-def]
            read.append(queue)
            yield from super().iter(queue, *place)

    monkeypatch.setattr(module, "Schedule", Noting)
    assert [found.queue for found in islice(upcoming(rig.store, QUEUES), 2)] == QUEUES[:2]
    assert read == QUEUES[:2]
