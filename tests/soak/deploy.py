"""A rolling deploy under load: two workers of yesterday, tasks of which half are of today, and then a worker
of today. Workers are killed meanwhile, if that is wanted."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from celery import Celery

from kombu_redisdelay import Messages, Selection, batch
from tests.end_to_end.installation import Installation
from tools.harness.celery_worker import CeleryWorker
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

#: With the concurrency of each.
POOLS = {"prefork": 2, "solo": 1, "threads": 4, "gevent": 20, "eventlet": 20}

#: The apps of yesterday and of today.
OLD, NEW = "tests.end_to_end.app", "tests.end_to_end.newer_app"

#: Seconds before the worker of today comes, and until all is done, at most.
ALONE, PATIENCE = 10.0, 300.0

#: Seconds between two kills.
KILL_EVERY = 3.0

#: What a worker may say when others are killed.
EXPECTED = "Recovered|The lease of this consumer was lost|Keys have vanished from Redis|Traceback|Error"


class Deploy:
    """The workers of a deploy.

    Arguments:
        options: of all workers.
        kills: how many are killed in all.
    """

    def __init__(self, site: Installation, kills: int, **options: Any) -> None:
        self._site, self._options, self._kills = site, options, kills
        self._workers: list[tuple[CeleryWorker, str]] = []
        self._random, self._killed_at = random.Random(1), time.monotonic()

    def start(self, app: str) -> None:
        worker = self._site.start_worker(app=app, expected=EXPECTED, **self._options)
        self._workers.append((worker, app))

    def goes_on(self) -> None:
        """Kill a worker, and start it again, if it is time for that."""
        if self._kills and time.monotonic() - self._killed_at > KILL_EVERY:
            self._killed_at, self._kills = time.monotonic(), self._kills - 1
            worker, app = self._workers.pop(self._random.randrange(len(self._workers)))
            worker.kill()
            self.start(app)


def deploy(pool: str, number: int, kills: int, late: bool, is_cluster: bool, python: str) -> bool:
    """Print how it went. Returns whether each task has run, and run once unless a worker was killed."""
    with ExitStack() as stack:
        backend = stack.enter_context(RedisServer())
        server: Any = stack.enter_context(Cluster(primaries=3) if is_cluster else RedisServer())
        directory = Path(stack.enter_context(TemporaryDirectory()))
        options = {"visibility_timeout": 6, "delivery_limit": None}
        site = stack.enter_context(
            Installation(
                server,
                directory,
                result_backend=backend.url("redis"),
                broker_transport_options=options,
                task_acks_late=late,
            )
        )
        scheme = "redisdelay-cluster" if is_cluster else "redisdelay"
        producer = site.producer(scheme)
        _publish(producer, number)
        workers = Deploy(site, kills, scheme=scheme, pool=pool, concurrency=POOLS[pool], python=python)
        workers.start(OLD)
        workers.start(OLD)
        wait_until(site.ledger.ended, PATIENCE, "the first one has run")
        began = time.monotonic()
        while time.monotonic() - began < ALONE:
            time.sleep(0.2)
            workers.goes_on()
        known = len(set(site.ledger.ended()))
        joined = time.monotonic()
        workers.start(NEW)

        def is_over() -> bool:
            workers.goes_on()
            return len(set(site.ledger.ended())) >= number

        wait_until(is_over, PATIENCE, "all have run")
        took = time.monotonic() - joined
        client = backend.client()
        wait_until(lambda: sum(_states(client).values()) >= number, PATIENCE, "the results")
        states, twice = _states(client), len(site.ledger.run_twice())
        with Messages(producer) as letters:
            dead = letters.count(Selection(state="dead"))
        client.close()
    print(
        f"{pool} {'late' if late else 'early'}, {kills} kills: {known / ALONE:.0f} known a second, all done "
        f"{took:.1f} s after the new worker's start, twice {twice}, dead {dead}, {dict(states)}",
        flush=True,
    )
    return not dead and states == {"SUCCESS": number} and (bool(kills) or not twice)


def _publish(producer: Celery, number: int) -> None:
    with batch(producer):
        for index in range(number):
            producer.send_task("newer" if index % 2 else "work", [str(index)])


def _states(client: Any) -> Counter[str]:
    keys = list(client.scan_iter("celery-task-meta-*", count=1000))
    values = client.mget(keys) if keys else []
    return Counter(value.split(b'"status": "', 1)[1].split(b'"', 1)[0].decode() for value in values)


def deploy_all(pools: list[str], number: int, kills: int, early: bool, is_cluster: bool, python: str) -> bool:
    """The same in each of *pools*."""
    # Each pool has its turn, also when one has failed.
    outcomes = [
        deploy(pool, number, kills, not early, is_cluster, python or sys.executable) for pool in pools
    ]
    return all(outcomes)
