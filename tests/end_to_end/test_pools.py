"""Countdown tasks wait in Redis and run once, not before their time, in every pool of Celery."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from tests.end_to_end.installation import Installation
from tools.harness.redis_server import RedisServer

POOLS = {"prefork": 2, "threads": 2, "solo": 1, "gevent": 10, "eventlet": 10}
TASKS = 200
#: Seconds over which the times of the tasks are spread.
SPREAD = 5
#: Tasks that are published to see how long all will take on this machine, as busy as it is.
SAMPLE = 50


@dataclass
class Run:
    """All pools at work at the same time, which takes a quarter of the time.

    Attributes:
        while_waiting: for each queue, what was in Redis while all of its tasks waited.
        last: when the last task is due.
    """

    site: Installation
    last: datetime
    while_waiting: dict[str, list[Any]]


@pytest.fixture(scope="module")
def run(shared_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with shared_server.client() as client:
        client.flushall()
    with Installation(shared_server, tmp_path_factory.mktemp("pools")) as site:
        workers = [
            site.start_worker(pool=pool, concurrency=concurrency, queues=[pool])
            for pool, concurrency in POOLS.items()
        ]
        for worker in workers:
            worker.wait_ready()
        producer = site.producer()
        first = datetime.now(timezone.utc) + timedelta(seconds=lead(producer))
        for number in range(TASKS):
            eta = first + timedelta(seconds=SPREAD * number / TASKS)
            for pool in POOLS:
                producer.send_task("work", [f"{pool} {number}"], eta=eta, queue=pool)
        while_waiting = {
            pool: site.at_one_instant(
                ("ZCARD", f"redisdelay:{{{pool}}}:schedule"),
                ("LLEN", pool),
                ("KEYS", "*unacked*"),
            )
            for pool in POOLS
        }
        yield Run(site, first + timedelta(seconds=SPREAD), while_waiting)


def lead(producer: Celery) -> float:
    """Seconds until the first task is due, enough to publish all before."""
    began = time.monotonic()
    for _ in range(SAMPLE):
        producer.send_task("work", countdown=3600, queue="elsewhere")
    return 2 + 3 * (time.monotonic() - began) * TASKS * len(POOLS) / SAMPLE


@pytest.mark.parametrize("pool", POOLS)
def test_countdown_tasks_wait_in_redis_and_run_once_at_their_time(run: Run, pool: str) -> None:
    assert run.while_waiting[pool] == [TASKS, 0, []]

    tasks = [f"{pool} {number}" for number in range(TASKS)]
    until_due = (run.last - datetime.now(timezone.utc)).total_seconds()
    run.site.wait_ended(tasks, max(0.0, until_due) + 30)

    started = run.site.ledger.started()
    assert sorted(task for task in started if task in tasks) == sorted(tasks)
    assert run.site.ledger.early() == []
    assert run.site.scheduled(pool) == 0
