"""Where the messages of a queue are, read from Redis."""

from __future__ import annotations

from typing import NamedTuple

from kombu.transport.redis import Channel
from redis import Redis

from kombu_redisdelay.broker.keys import redis_keys


class Counts(NamedTuple):
    """How many messages wait for their time, wait for a worker, and are held by one."""

    scheduled: int = 0
    ready: int = 0
    unacked: int = 0

    @classmethod
    def of(cls, client: Redis, queue: str) -> Counts:
        keys = redis_keys("", queue, Channel.sep)
        consumers = [name.decode() for name in client.execute_command("ZRANGE", keys.consumers, 0, -1)]
        # A message that moves must not be counted twice, or not at all.
        with client.pipeline(transaction=True) as pipe:
            pipe.zcard(keys.schedule)
            pipe.llen(keys.ready)
            for consumer in consumers:
                pipe.hlen(keys.unacked(consumer))
            scheduled, ready, *unacked = pipe.execute()
        return cls(scheduled, ready, sum(unacked))
