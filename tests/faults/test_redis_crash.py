"""Redis is killed, and comes back: what was confirmed is there, and while it loads nothing is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from kombu.connection import Connection
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from tests.end_to_end.installation import Installation
from tests.faults.workers import LOST_CONNECTION
from tests.transport.kit import PATIENCE, publish
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

DURABLE = ("--appendfsync", "always")

#: It takes so many microseconds a key, and listens in between.
SLOW_TO_LOAD = ("--key-load-delay", "1000", "--rdbcompression", "no")
KEYS_TO_LOAD = 3000


@pytest.fixture
def durable_server() -> Iterator[RedisServer]:
    with RedisServer(appendonly=True, args=DURABLE) as server:
        yield server


def bodies(server: RedisServer) -> set[str]:
    """What is in all messages, ready or scheduled."""
    with server.client() as client:
        redis: Any = client
        ready = redis.lrange("q", 0, -1)
        scheduled = redis.hgetall("redisdelay:{q}:messages")
        assert redis.zcard("redisdelay:{q}:schedule") == len(scheduled)
        messages = [*ready, *(stored.partition(b":")[2] for stored in scheduled.values())]
    return {json.loads(message)["headers"]["body"] for message in messages}


def test_every_confirmed_publish_survives_a_kill(durable_server: RedisServer) -> None:
    confirmed: list[str] = []

    def publish_until_it_fails(name: int) -> None:
        with Connection(durable_server.url()) as connection:
            channel = connection.channel()
            try:
                for number in range(1_000_000):
                    body = f"{name}-{number}"
                    delay = {"x-delay": 3_600_000} if number % 2 else {}
                    publish(channel, "", headers={"body": body, **delay})
                    confirmed.append(body)
            except connection.connection_errors:
                pass

    publishers = [Thread(target=publish_until_it_fails, args=(name,)) for name in range(4)]
    for publisher in publishers:
        publisher.start()
    wait_until(lambda: len(confirmed) > random.randrange(200, 400), PATIENCE, "messages")
    durable_server.kill()
    for publisher in publishers:
        publisher.join(PATIENCE)
    durable_server.restart()

    found = bodies(durable_server)
    assert not set(confirmed) - found
    # The last of each publisher may have been written without a word.
    assert len(found - set(confirmed)) <= len(publishers)


def test_while_redis_loads_nothing_is_accepted_and_workers_wait(tmp_path: Path) -> None:
    pools = ("threads", "gevent")
    with (
        RedisServer(args=SLOW_TO_LOAD) as server,
        Installation(server, tmp_path) as installation,
        Connection(server.url()) as connection,
    ):
        channel = connection.channel()
        publish(channel, "accepted", queue="other")
        workers = [
            installation.start_worker(pool=pool, queues=[pool], expected=f"{LOST_CONNECTION}|Loading")
            for pool in pools
        ]
        for worker in workers:
            worker.wait_ready()
        producer = installation.producer()
        for pool in pools:
            producer.send_task("work", [f"{pool} waited"], queue=pool, countdown=3)
        with installation.redis.pipeline(transaction=False) as pipe:
            for number in range(KEYS_TO_LOAD):
                pipe.execute_command("SET", f"filler:{number}", "x" * 8192)
            pipe.execute()
        installation.redis.execute_command("SAVE")
        server.kill()
        server.start()

        wait_until(lambda: is_loading(server), PATIENCE, "it loads")
        with pytest.raises(BusyLoadingError):
            publish(channel, "not accepted")
        server.wait_ready()
        assert (installation.ready("other"), installation.ready("q")) == (1, 0)
        for pool in pools:
            producer.send_task("work", [f"{pool} after"], queue=pool)
        installation.wait_ended([f"{pool} {what}" for pool in pools for what in ("waited", "after")])
        assert installation.ledger.run_twice() == {}
        assert all(worker.running for worker in workers)


def is_loading(server: RedisServer) -> bool:
    with server.client(retry=Retry(NoBackoff(), 0)) as client:
        try:
            client.ping()
        except BusyLoadingError:
            return True
        except RedisConnectionError:
            # It does not listen yet.
            return False
    raise AssertionError("it has loaded already")
