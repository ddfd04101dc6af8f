"""Moving back to ``redis://``: what its workers find, and when it is due."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from kombu.connection import Connection

from kombu_redisdelay.operations.reverse_adoption import GivenBack
from tests.operations.stock import (
    Place,
    give_back,
    message,
    name_of,
    now,
)
from tools.harness.redis_server import RedisServer


def test_stock_workers_learn_when_it_is_due(place: Place, server: RedisServer) -> None:
    with Connection(server.url()) as connection:
        producer = connection.Producer()
        for eta_in in (7200, 3600):
            producer.publish("", routing_key="celery", **_task(f"in {eta_in}", eta_in))
        # A task that was given back for later: its header does not say when.
        producer.publish("", routing_key="celery", headers={"task": "t", "id": "x", "x-delay": 60_000})
        # Nothing of Celery's.
        producer.publish("plain", routing_key="celery", headers={"x-delay": 120_000})
    due = [due_ms for due_ms, _ in place.scheduled("celery")]

    with place.reverse_adoption() as adoption:
        assert adoption.look() == GivenBack(scheduled=4, at_once=1)
    assert give_back(place) == GivenBack(scheduled=4, at_once=1)

    assert place.scheduled("celery") == []
    found = [json.loads(text)["headers"].get("eta") for _, text in place.ready("celery")]
    etas = [datetime.fromisoformat(eta).timestamp() * 1000 if eta else None for eta in found]
    assert etas == [pytest.approx(due[0], abs=1), None, *(pytest.approx(each, abs=1) for each in due[2:])]


def _task(id: str, eta_in: float) -> dict[str, Any]:
    eta = (now() + timedelta(seconds=eta_in)).isoformat()
    return {"headers": {"task": "t", "id": id, "eta": eta}}


def test_what_our_dead_workers_held_comes_back(place: Place) -> None:
    keys = place.keys("celery")
    for name, end in (("dead", -1000), ("alive", 60_000)):
        place.redis.zadd(keys.consumers, {name: now().timestamp() * 1000 + end})
        place.redis.hset(keys.unacked(name), "1", f"0:{json.dumps(message(name))}")
    place.redis.zadd("redisdelay:known-queues", {"celery": 1})
    with place.reverse_adoption() as adoption:
        assert adoption.look() == GivenBack(unacked=1)
    assert give_back(place) == GivenBack(unacked=1)
    assert [name_of(json.loads(text)) for _, text in place.ready("celery")] == ["dead"]
