"""Messages whose producer has another ``sep`` or other ``priority_steps`` are found, and brought back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue

from kombu_redisdelay.operations.doctor import examine
from tests.operations.stock import Place, adopt, entry, message, name_of
from tools.harness.redis_server import RedisServer

#: As pretix sets them, and only for ``redis://``.
OF_PRETIX: dict[str, Any] = {"sep": ":", "priority_steps": [0, 4, 8]}


def publish(server: RedisServer, *names: str, queue: str = "a", **options: Any) -> None:
    """As a producer of ``redis://`` with these transport options."""
    with Connection(server.url("redis"), transport_options=options) as connection:
        bound = Queue(queue, Exchange(queue), routing_key=queue)
        producer = connection.Producer()
        for name in names:
            headers = {"task": "work", "id": name}
            producer.publish(
                [],
                exchange=bound.exchange,
                routing_key=queue,
                declare=[bound],
                headers=headers,
                priority=5,
            )


def got(server: RedisServer, queue: str = "a") -> list[str]:
    """What a worker of ours gets, without any option."""
    found = []
    with Connection(server.url()) as connection:
        while (one := connection.default_channel.basic_get(queue)) is not None:
            found.append(one.headers["id"])
            one.ack()
    return found


def findings(place: Place, queue: str = "a") -> list[str]:
    with place.adoption() as adoption:
        return [
            f"{finding.found}. {finding.advice}"
            for finding in examine(adoption)
            if finding.queue == queue and finding.level == "wrong"
        ]


@pytest.mark.parametrize(
    ("options", "key", "lead_there"),
    [
        (OF_PRETIX, "a:4", "{'sep': ':', 'priority_steps': [0, 4]}"),
        ({"sep": "--"}, "a--3", "{'sep': '--', 'priority_steps': [0, 3]}"),
        ({"priority_steps": [0, 5]}, "a\x06\x165", "{'priority_steps': [0, 3, 5, 6, 9]}"),
    ],
)
def test_they_are_found_and_moved(
    place: Place, server: RedisServer, options: dict[str, Any], key: str, lead_there: str
) -> None:
    publish(server, "1", "2", "3", **options)
    assert place.redis.llen(key) == 3

    [found] = findings(place)
    assert f"3 messages in {key!r}, where no worker of this app looks" in found
    assert f"broker_transport_options = {lead_there}" in found
    with place.adoption() as adoption:
        assert (adoption.look().messages, adoption.look().lists) == (3, {key: 3})
    assert place.redis.llen(key) == 3

    done = adopt(place)
    assert got(server) == ["1", "2", "3"]
    assert (done.messages, done.stranded, done.stay) == (3, 3, 0)
    assert findings(place) == []


def test_the_options_that_are_named_lead_there(place: Place, server: RedisServer) -> None:
    publish(server, "1", **OF_PRETIX)
    place.options = {"sep": ":", "priority_steps": [0, 4]}
    assert findings(place) == []
    with Connection(server.url(), transport_options=place.options) as connection:
        assert connection.default_channel.basic_get("a").headers["id"] == "1"


def test_a_countdown_goes_into_the_schedule(place: Place) -> None:
    place.redis.lpush("a:4", json.dumps(message("later", eta_in=60)), json.dumps(message("late", eta_in=-60)))
    assert adopt(place).messages == 2
    assert [name_of(json.loads(text)) for _, text in place.ready("a")] == ["late"]
    [(_, stored)] = place.scheduled("a")
    assert name_of(json.loads(stored.partition(":")[2])) == "later"


def test_more_than_one_step_can_move(place: Place, server: RedisServer) -> None:
    names = [str(number) for number in range(250)]
    place.redis.lpush("a:4", *(json.dumps(message(name)) for name in names))
    place.redis.lpush("a:8", json.dumps(message("large") | {"body": "x" * 300_000}))
    with place.adoption() as adoption:
        for done in adoption.adopt():
            if done.messages == 10:
                break
    # A step is all or nothing, and what was moved is not there twice.
    assert 0 < place.redis.llen("a:4") < len(names)
    adopt(place)
    assert got(server) == [*names, "large"]


def test_what_is_no_list_of_the_queue_stays(place: Place, server: RedisServer) -> None:
    # A queue of this name, and what other programs have there.
    publish(server, "1", queue="a:4")
    with place.adoption() as adoption:
        adoption.app.conf.task_queues = [Queue("a"), Queue("a:4")]
        place.redis.rpush("a:5", "x", json.dumps(message("1")))
        place.redis.rpush("a:6", json.dumps(message("1")), "x")
        place.redis.set("a:7", "x")
        before = {key: place.redis.dump(key) for key in place.redis.keys("a:*")}
        assert adoption.look().messages == 0
        *_, done = adoption.adopt()
    assert (done.messages, done.stay) == (0, 0)
    assert {key: place.redis.dump(key) for key in place.redis.keys("a:*")} == before


def test_an_entry_that_is_no_message_stays_alone(place: Place, server: RedisServer) -> None:
    place.redis.lpush("a:4", json.dumps(message("1")), "junk", json.dumps(message("2")))
    done = adopt(place)
    assert got(server) == ["1", "2"]
    assert (done.stranded, done.stay, done.why) == (2, 1, {"list 'a:4'": "an entry is no message"})
    assert place.redis.lrange("a:4", 0, -1) == ["junk"]


def test_a_list_of_junk_is_not_searched_for_ever(place: Place) -> None:
    ends = json.dumps(message("1"))
    place.redis.lpush("a:4", ends, *(f"junk {number}" for number in range(1000)), ends)
    assert adopt(place).stay < 1000
    assert place.redis.llen("a:4") == 1001


def test_a_queue_that_others_alone_have_bound(place: Place, server: RedisServer) -> None:
    """The app does not declare it, and nothing of it is where we look."""
    publish(server, "1", queue="others", **OF_PRETIX)
    adopt(place)
    assert got(server, "others") == ["1"]


def test_what_their_workers_held_goes_through_their_bindings(place: Place, server: RedisServer) -> None:
    publish(server, queue="a", **OF_PRETIX)
    publish(server, "1", queue="a", **OF_PRETIX)
    place.redis.delete("a:4")
    place.take("held", entry(message("held"), "a", "a"))
    done = adopt(place)
    assert got(server) == ["held"]
    assert (done.ready, done.copies, done.stay) == (1, 0, 0)


def test_who_may_not_read_such_lists_is_not_told(place: Place, server: RedisServer) -> None:
    publish(server, "1", **OF_PRETIX)
    allowed = ("~a", "~a\x06*", "~celery*", "~b*", "~redisdelay:*", "~unacked*", "~_kombu*", "&*", "+@all")
    place.redis.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", *allowed)
    limited = Place.__new__(Place)
    limited.__dict__.update(place.__dict__)
    limited._url = server.url().replace("://", "://limited:secret@")
    assert not any("no worker of this app looks" in found for found in findings(limited))
