"""Moving over from ``redis://`` and back with messages that have keys."""

from __future__ import annotations

from typing import Any

import pytest
from kombu.connection import Connection

from tests.operations.stock import Place, adopt, entry, give_back, message
from tools.harness.redis_server import RedisServer


def keyed(name: str, eta_in: float | None = None, mode: str = "waiting", key: Any = "k") -> dict[str, Any]:
    """A task as a program of ``redis://`` publishes it, with the headers of a key."""
    found = message(name, eta_in)
    found["headers"] |= {"x-unique": key, "x-unique-while": mode}
    return found


def publish(server: RedisServer, name: str, mode: str = "waiting") -> None:
    with Connection(server.url()) as connection:
        headers = {"x-unique": "k", "x-unique-while": mode}
        connection.Producer().publish("", routing_key="celery", headers=headers, message_id=name)


def names(place: Place) -> list[str]:
    """Scheduled and ready messages."""
    scheduled: list[str] = place.redis.zrange(place.keys("celery").schedule, 0, -1)
    return scheduled + [text for _, text in place.ready("celery")]


@pytest.mark.parametrize("mode", ["waiting", "done"])
@pytest.mark.parametrize("eta_in", [None, 3600])
def test_what_is_adopted_takes_its_key(
    place: Place, server: RedisServer, mode: str, eta_in: float | None
) -> None:
    place.take("held", entry(keyed("held", eta_in, mode)))
    adopt(place)
    # It would be published at an earlier time, under the id of the one that is scheduled.
    publish(server, "another", mode)
    assert len(names(place)) == 1
    assert place.redis.hget(place.keys("celery").unique, "k").split()[-1] == "held"


def test_with_latest_the_newest_replaces_what_was_adopted(place: Place, server: RedisServer) -> None:
    place.take("held", entry(keyed("held", 3600, "latest")))
    adopt(place)
    publish(server, "newest", "latest")
    assert place.scheduled("celery") == []
    [(_, text)] = place.ready("celery")
    assert '"message_id": "held"' in text


@pytest.mark.parametrize("mode", ["waiting", "done", "latest"])
@pytest.mark.parametrize("is_held", [True, False], ids=["held", "ready"])
@pytest.mark.parametrize("header", ["retries", "replaced_task_nesting"])
def test_a_retry_that_was_adopted_is_not_replaced(
    place: Place, server: RedisServer, mode: str, is_held: bool, header: str
) -> None:
    retry = keyed("retry", 3600, mode)
    retry["headers"][header] = 1
    if is_held:
        place.take("retry", entry(retry))
    else:
        place.publish("celery", retry)
    adopt(place)
    publish(server, "newest", mode)
    assert place.redis.hget(place.keys("celery").unique, "k").split("\x1e")[0].split()[-1] == "retry"
    [(_, stored), *_] = place.scheduled("celery")
    assert f'"{header}": 1' in stored
    assert len(names(place)) == (2 if mode == "latest" else 1)


def test_what_waits_on_a_ready_list_for_its_time_takes_its_key(place: Place, server: RedisServer) -> None:
    place.publish("celery", keyed("early", 3600, "done"))
    adopt(place)
    assert place.redis.hget(place.keys("celery").unique, "k").split()[-1] == "early"
    [(_, stored)] = place.scheduled("celery")
    assert '"redisdelay-unique": ["d", "early", "k"]' in stored


def test_it_runs_without_a_key_that_another_one_holds(place: Place, server: RedisServer) -> None:
    publish(server, "holder", "done")
    place.take("held", entry(keyed("held", None, "done")))
    place.take("later", entry(keyed("later", 3600, "done")))
    adopt(place)
    assert place.redis.hget(place.keys("celery").unique, "k").split()[-1] == "holder"
    assert (len(place.ready("celery")), len(place.scheduled("celery"))) == (2, 1)


@pytest.mark.parametrize("key", ["", 5, ["k"], "a\nb", "x" * 257])
def test_what_is_no_key_is_none(place: Place, key: Any) -> None:
    place.take("held", entry(keyed("held", 3600, key=key)))
    place.publish("celery", keyed("early", 3600, key=key))
    assert adopt(place).messages == 2
    assert not place.redis.exists(place.keys("celery").unique)
    assert not any("redisdelay-unique" in stored for _, stored in place.scheduled("celery"))


def test_a_key_picks_the_partition(server: RedisServer) -> None:
    place = Place(server, partitions={"celery": 4})
    for number in range(10):
        place.take(str(number), entry(keyed(str(number), 3600)))
    adopt(place)
    assert len(place.redis.keys("redisdelay:{celery*}:unique")) == 1


def test_moving_back_leaves_nothing_of_keys(place: Place, server: RedisServer) -> None:
    for name in ("holder", "blocked"):
        publish(server, name, "latest")
    with Connection(server.url()) as connection:
        held = connection.default_channel.basic_get("celery")
        assert held is not None
        assert place.redis.exists(place.keys("celery").running)
        publish(server, "another", "latest")
        # As after a SIGKILL.
        consumers = place.keys("celery").consumers
        for consumer in place.redis.zrange(consumers, 0, -1):
            place.redis.zadd(consumers, {consumer: 1})
        give_back(place)
    assert len(place.ready("celery")) == 2
    assert place.scheduled("celery") == []
    keys = place.keys("celery")
    assert place.redis.exists(keys.unique, keys.running) == 0
