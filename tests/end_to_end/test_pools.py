"""Countdown tasks wait in Redis and run once, not before their time, in every pool of Celery."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import pytest

from tests.end_to_end.installation import Installation
from tools.harness.redis_server import RedisServer

POOLS = {"prefork": 2, "threads": 2, "solo": 1, "gevent": 10, "eventlet": 10}
TASKS = 200
#: Seconds until the first of these is due, and over which the times of the others are spread.
LEAD, SPREAD = 5, 5
#: Tasks of each pool that are not due as long as the test runs.
LATER = 50


@dataclass
class Look:
    """What waits in Redis at one instant.

    Attributes:
        expected: ids of the tasks that are not due yet.
        found: ids of all that are scheduled.
    """

    expected: set[str]
    found: set[str]


@dataclass
class Run:
    """All pools at work at the same time, which takes a quarter of the time.

    Attributes:
        looks: for each queue, one when all is published.
        last: when the last task is due that runs.
    """

    site: Installation
    last: datetime
    looks: dict[str, Look]


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
        due: dict[str, dict[str, float]] = {pool: {} for pool in POOLS}
        first = datetime.now(timezone.utc) + timedelta(seconds=LEAD)
        etas = [first + timedelta(seconds=SPREAD * number / TASKS) for number in range(TASKS)]
        etas += [first + timedelta(hours=1)] * LATER
        for number, eta in enumerate(etas):
            for pool in POOLS:
                sent = producer.send_task("work", [f"{pool} {number}"], eta=eta, queue=pool)
                due[pool][sent.id] = eta.timestamp()
        yield Run(site, etas[TASKS - 1], {pool: look(site, pool, due[pool]) for pool in POOLS})


def look(site: Installation, queue: str, due: dict[str, float]) -> Look:
    """Look into Redis. On a busy machine, some tasks are *due* by then."""
    (seconds, microseconds), found = site.at_one_instant(
        ("TIME",), ("ZRANGE", f"redisdelay:{{{queue}}}:schedule", "0", "-1")
    )
    now = int(seconds) + int(microseconds) / 1e6
    return Look({id for id, at in due.items() if at > now}, {name.decode() for name in found})


@pytest.mark.parametrize("pool", POOLS)
def test_countdown_tasks_wait_in_redis_and_run_once_at_their_time(run: Run, pool: str) -> None:
    waiting = run.looks[pool]
    assert len(waiting.expected) >= LATER
    assert waiting.expected <= waiting.found

    tasks = [f"{pool} {number}" for number in range(TASKS)]
    until_due = (run.last - datetime.now(timezone.utc)).total_seconds()
    run.site.wait_ended(tasks, max(0.0, until_due) + 60)

    started = run.site.ledger.started()
    assert sorted(task for task in started if task.startswith(f"{pool} ")) == sorted(tasks)
    assert run.site.ledger.early() == []
    assert run.site.scheduled(pool) == LATER
