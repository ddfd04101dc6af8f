"""Moving over where others use the same Redis: queues that nobody declares, fanout, killed workers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from kombu.common import Broadcast
from redis.exceptions import NoPermissionError, ResponseError

from kombu_redisdelay.broker.processes import new_consumer
from kombu_redisdelay.operations.adoption import Adopted, Adoption
from kombu_redisdelay.operations.reverse_adoption import GivenBack
from kombu_redisdelay.operations.transfer import InUse
from tests.operations.stock import Place, adopt, entry, give_back, message, name_of, now
from tests.permissions import allow, documented_rules
from tools.harness.redis_server import RedisServer

#: Prints the name of a consumer, and ends.
_NAME = "from kombu_redisdelay.broker.processes import new_consumer; print(new_consumer())"


def test_what_a_worker_held_that_is_gone_for_certain_comes_back_at_once(place: Place) -> None:
    keys = place.keys("celery")
    place.redis.zadd("redisdelay:known-queues", {"celery": 1})
    with subprocess.Popen([sys.executable, "-c", _NAME], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        killed = process.stdout.readline().strip()
    for name in (killed, new_consumer()):
        place.redis.zadd(keys.consumers, {name: now().timestamp() * 1000 + 60_000})
        place.redis.hset(keys.unacked(name), "1", f"0:{json.dumps(message(name))}")
    with place.reverse_adoption() as adoption:
        with pytest.raises(InUse):
            adoption.check_not_in_use()
        assert adoption.look() == GivenBack(unacked=1)
        assert give_back(place) == GivenBack(unacked=1)
        place.redis.zrem(keys.consumers, *set(place.redis.zrange(keys.consumers, 0, -1)) - {killed})
        adoption.check_not_in_use()
    assert [name_of(json.loads(text)) for _, text in place.ready("celery")] == [killed]


def test_a_queue_of_others_is_found(place: Place) -> None:
    # As Celery does with a queue that the app does not declare.
    place.bind("reports", ("reports", "", "reports"), ("k", "", "empty"))
    place.redis.sadd(f"{place.prefix}_kombu.binding.broken", "a", b"\xff\x06\x16\x06\x16\xff")
    place.redis.set(f"{place.prefix}_kombu.binding.string", "x")
    place.publish("reports", message("early", 3600))
    place.publish("reports", message("ready"))
    with place.adoption() as adoption:
        assert adoption.look() == Adopted(parked=1)
    assert adopt(place) == Adopted(parked=1)
    assert [text for _, text in place.scheduled("reports")]
    with place.adoption() as adoption:
        assert adoption.queues() == ["a", "b", "celery", "reports"]


def test_nobody_reads_what_a_worker_held_of_a_fanout(place: Place) -> None:
    place.bind("news", ("", "", "bcast.1"), ("", "", "bcast.2"))
    place.take("tag", entry(message("news"), "news", ""))
    with place.adoption() as adoption:
        adoption.app.conf.task_queues = [Broadcast("news")]
        # Each process has another name for its queue.
        assert adoption.declared_queues == []
        assert adoption.look().stay == 1
        *_, done = adoption.adopt()
    assert (done.messages, done.stay) == (0, 1)
    assert "'news' is a fanout" in done.why["tag"]
    assert place.redis.hkeys(place.unacked) == ["tag"]
    assert place.ready("bcast.1") == place.ready("bcast.2") == []


@pytest.mark.parametrize(
    ("key", "expected"), [("unacked", "hash"), ("unacked_index", "zset"), ("redisdelay:known-queues", "zset")]
)
def test_an_error_names_the_key(place: Place, key: str, expected: str) -> None:
    place.redis.set(key, "x")
    with place.adoption() as adoption:
        for do in (adoption.look, lambda: list(adoption.adopt())):
            with pytest.raises(
                ResponseError, match=f"key '{key}' holds a string, where a {expected} belongs"
            ):
                do()


def test_who_may_not_look_for_queues_is_told(server: RedisServer) -> None:
    rules = [*documented_rules("celery"), "-scan", "~unacked*", "+client|list"]
    with Adoption(allow(server, *rules)) as adoption, pytest.raises(NoPermissionError, match="scan"):
        adoption.look()
