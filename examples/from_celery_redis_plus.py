"""Moves the tasks that celery-redis-plus (0.4) keeps in Redis into the queues of this transport: those that
are ready, those that wait for their time, and those that its workers had taken.

    python from_celery_redis_plus.py redis://localhost:6379/0 redisdelay://localhost:6379/0

Stop all its producers and workers first. A task is removed after it was published, so one is there twice if
this is killed between the two. Then run it again. Priorities stay as they are: there, a larger number is
taken first, here a smaller one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from kombu.connection import Connection
from kombu.utils.json import loads
from redis import Redis

import kombu_redisdelay  # noqa: F401 (its URLs)

PREFIX = ""  # its global_keyprefix
INDEX, QUEUE, MESSAGE = (f"{PREFIX}{name}:".encode() for name in ("messages_index", "queue", "message"))


def move(source: str, destination: str) -> int:
    """Move all tasks from one URL to another. Returns how many."""
    old: Any = Redis.from_url(source)
    count = 0
    with old, Connection(destination) as new:
        for queue, tag in tasks(old):
            payload, deliveries = old.hmget(MESSAGE + tag, "payload", "delivery_count")
            if payload is not None:
                publish(new.default_channel, queue.decode(), loads(payload), int(deliveries or 0))
                count += 1
            with old.pipeline(transaction=True) as remove:
                remove.delete(MESSAGE + tag).zrem(QUEUE + queue, tag).zrem(INDEX + queue, tag).execute()
    return count


def tasks(old: Any) -> Iterator[tuple[bytes, bytes]]:
    """The queue and the tag of each: first what is ready, in its order, then the others."""
    for kind in (QUEUE, INDEX):
        for key in list(old.scan_iter(kind + b"*", _type="zset")):
            for tag in old.zrange(key, 0, -1):
                yield key.removeprefix(kind), tag


def publish(channel: Any, queue: str, message: dict[str, Any], deliveries: int) -> None:
    """Publish a message as it is, with its id. If its header ``eta`` is in the future, it is scheduled."""
    if deliveries:
        message["headers"]["redelivered"] = True
    channel._put(queue, message)


if __name__ == "__main__":
    print(f"Moved {move(*sys.argv[1:])} tasks.")
