"""A broker that workers of ``redis://`` have left, and what is in there."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery
from kombu.entity import Queue

from kombu_redisdelay.broker.keys import redis_keys
from kombu_redisdelay.operations.adoption import Adopted, Adoption
from kombu_redisdelay.operations.reverse_adoption import GivenBack, ReverseAdoption
from tools.harness.redis_server import RedisServer

SEPARATOR = "\x06\x16"
STEPS = (0, 3, 6, 9)
PREFIX = "shop:"
OPTIONS = {
    "global_keyprefix": PREFIX,
    "unacked_key": "taken",
    "unacked_index_key": "taken_when",
}


def now() -> datetime:
    return datetime.now(timezone.utc)


def message(name: str, eta_in: float | None = None, priority: int = 0) -> dict[str, Any]:
    """A task as Celery publishes it."""
    eta = None if eta_in is None else (now() + timedelta(seconds=eta_in)).isoformat()
    return {
        "body": "W10=",
        "content-type": "application/json",
        "headers": {"task": "work", "id": name, "eta": eta, "nothing": [], "large": 2**63 + 1},
        "properties": {
            "priority": priority,
            "delivery_tag": name,
            "delivery_info": {"exchange": "", "routing_key": "celery"},
            "body_encoding": "base64",
        },
    }


class Place:
    """A broker, and what is in there."""

    def __init__(self, server: RedisServer, **options: Any) -> None:
        self.redis: Any = server.client(decode_responses=True)
        self.redis.flushall()
        self.options = options
        self.prefix = options.get("global_keyprefix", "")
        self.unacked = self.prefix + options.get("unacked_key", "unacked")
        self.index = self.prefix + options.get("unacked_index_key", "unacked_index")
        self._url = server.url()

    def adoption(self) -> Adoption:
        return Adoption(self._app())

    def reverse_adoption(self) -> ReverseAdoption:
        return ReverseAdoption(self._app())

    def _app(self) -> Celery:
        app = Celery("shop", broker=self._url, set_as_current=False)
        app.conf.broker_transport_options = self.options
        app.conf.task_queues = [Queue(name) for name in ("a", "b", "celery")]
        return app

    def bind(self, exchange: str, *bindings: tuple[str, str, str]) -> None:
        self.redis.sadd(f"{self.prefix}_kombu.binding.{exchange}", *map(SEPARATOR.join, bindings))

    def take(self, tag: str, entry: str | bytes, index: bool = True) -> None:
        """As a stock worker does that takes a message."""
        self.redis.hset(self.unacked, tag, entry)
        if index:
            self.redis.zadd(self.index, {tag: now().timestamp()})

    def publish(self, queue: str, published: dict[str, Any], step: int = 0) -> None:
        """As a stock producer does."""
        self.redis.lpush(self.prefix + queue + (f"{SEPARATOR}{step}" if step else ""), json.dumps(published))

    def keys(self, queue: str) -> Any:
        return redis_keys(self.prefix, queue, SEPARATOR)

    def ready(self, queue: str) -> list[tuple[int, str]]:
        """What is ready, each with its step, in the order in which it is taken."""
        return [
            (step, text)
            for step in STEPS
            for text in reversed(self.redis.lrange(self.keys(queue).ready_at(step), 0, -1))
        ]

    def scheduled(self, queue: str) -> list[tuple[float, str]]:
        """What is scheduled as it is stored, each with when it is due."""
        keys = self.keys(queue)
        rows = self.redis.zrange(keys.schedule, 0, -1, withscores=True)
        assert self.redis.hlen(keys.messages) == len(rows)
        return [(due_ms, self.redis.hget(keys.messages, member)) for member, due_ms in rows]

    def everything(self) -> Counter[tuple[str, str]]:
        """Where each message is: its name, and the place."""
        found: Counter[tuple[str, str]] = Counter()
        for queue in ("a", "b", "celery"):
            for step, text in self.ready(queue):
                found[name_of(json.loads(text)), f"{queue} ready {step}"] += 1
            for _, stored in self.scheduled(queue):
                number, _, text = stored.partition(":")
                found[name_of(json.loads(text)), f"{queue} scheduled {number}"] += 1
        for tag in self.redis.hkeys(self.unacked):
            found[tag, "unacked"] += 1
        return found


def name_of(published: dict[str, Any]) -> str:
    return str(published["properties"]["delivery_tag"])


def entry(published: Any, exchange: Any = "", routing_key: Any = "celery") -> str:
    return json.dumps([published, exchange, routing_key])


def adopt(place: Place) -> Adopted:
    with place.adoption() as adoption:
        *_, done = adoption.adopt()
    return done


def give_back(place: Place) -> GivenBack:
    with place.reverse_adoption() as adoption:
        *_, done = adoption.give_back()
    return done
