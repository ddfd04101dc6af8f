"""What is due first in many queues."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from kombu_redisdelay.broker import upcoming as module
from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.broker.upcoming import upcoming
from tests.broker.rig import Rig, payload

HOUR = 3_600_000
QUEUES = [f"q{number}" for number in range(5)]


def test_in_due_order(rig: Rig) -> None:
    for number in range(60):
        rig.schedule(QUEUES[number * number % 5], payload(str(number)), HOUR + 1000 * number)
    assert [found.payload.decode() for found in upcoming(rig.store, [*QUEUES, "empty"])] == [
        payload(str(number)) for number in range(60)
    ]


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
