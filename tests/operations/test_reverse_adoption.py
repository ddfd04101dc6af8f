"""Moving back to ``redis://``: what its workers find, and when it is due."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from kombu.connection import Connection

from kombu_redisdelay.broker.limits import FairQueues
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


def test_messages_that_have_lost_their_due_times_come_back_too(place: Place, server: RedisServer) -> None:
    with Connection(server.url()) as connection:
        for eta_in in (7200, 3600):
            connection.Producer().publish("", routing_key="celery", **_task(f"in {eta_in}", eta_in))
    place.redis.delete(place.keys("celery").schedule)
    with place.reverse_adoption() as adoption:
        assert adoption.look() == GivenBack(scheduled=2)
    assert give_back(place) == GivenBack(scheduled=2)
    assert len(place.ready("celery")) == 2


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


def held_by_a_lost_worker(place: Place, *messages: dict[str, Any], **members: int) -> None:
    keys = place.keys("celery")
    place.redis.zadd("redisdelay:known-queues", {"celery": 1})
    place.redis.zadd(keys.consumers, {"dead": now().timestamp() * 1000 - 1000})
    for tag, held in enumerate(messages):
        of_ours = {f"redisdelay-{name}": value for name, value in members.items()}
        place.redis.hset(keys.unacked("dead"), f"{tag}", f"0:{json.dumps({**of_ours, **held})}")


def test_what_is_sorted_in_again_counts_once(place: Place, server: RedisServer) -> None:
    """A lost worker of a fair queue."""
    with Connection(server.url()) as connection, place.reverse_adoption() as adoption:
        FairQueues(adoption.store).switch_on(["celery"])
        connection.Producer().publish("", routing_key="celery", headers={"x-key": "a"})
        connection.Producer().publish("", routing_key="celery", headers={"x-key": "a"})
        connection.default_channel.basic_get("celery").ack()
        held_by_a_lost_worker(place, message("held 1"), message("held 2"))
        assert adoption.look() == GivenBack(unacked=2, sorted_by_key=1)
        counts = list(adoption.give_back())
    assert counts[-1] == GivenBack(unacked=2, sorted_by_key=1)
    assert len(place.ready("celery")) == 3


def test_what_would_wait_before_it_is_tried_again_counts_once(place: Place) -> None:
    """It has failed twice: a worker of ours would have it wait in the schedule."""
    held_by_a_lost_worker(place, message("held"), deliveries=5, lost=3)
    with place.reverse_adoption() as adoption:
        assert adoption.look() == GivenBack(unacked=1)
    assert give_back(place) == GivenBack(unacked=1)
    assert (len(place.ready("celery")), place.scheduled("celery")) == (1, [])


def test_stock_workers_may_take_meanwhile(place: Place, server: RedisServer) -> None:
    """They may be started before the last step: each message is in one place, and says when it is due."""
    with Connection(server.url()) as connection, place.reverse_adoption() as adoption:
        FairQueues(adoption.store).switch_on(["a"])
        producer = connection.Producer()
        for number in range(30):
            producer.publish("", routing_key="a", headers={"task": "t", "id": f"a{number}", "x-key": "k"})
            producer.publish("", routing_key="celery", **_task(f"c{number}", 3600 + number))
        connection.default_channel.basic_get("a").ack()
        held_by_a_lost_worker(place, *(message(f"held {number}") for number in range(30)))
    taken: list[dict[str, Any]] = []
    with place.reverse_adoption() as adoption:
        for done in adoption.give_back():  # noqa: B007 - the last one is looked at
            taken += [json.loads(text) for queue in ("a", "celery") if (text := place.redis.rpop(queue))]
    taken += [json.loads(text) for queue in ("a", "celery") for _, text in place.ready(queue)]
    assert (done.scheduled, done.unacked, done.messages) == (30, 30, 89)
    expected = {f"{kind}{number}" for kind in ("a", "c", "held ") for number in range(30)}
    assert Counter(each["headers"]["id"] for each in taken) == Counter(expected - {"a0"})
    etas = {each["headers"]["id"]: each["headers"].get("eta") for each in taken}
    assert all(etas[f"c{number}"] for number in range(30))
