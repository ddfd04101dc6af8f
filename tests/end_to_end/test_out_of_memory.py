"""Redis is out of memory: workers that start, or come back, run the tasks that fill it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.installation import Installation
from tests.faults.workers import LOST_CONNECTION
from tools.harness.full import fill
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

POOLS = ["prefork", "solo", "threads", "gevent"]

#: Replies to other workers take memory, and so do the results of mingle. Celery says so, and goes on.
REFUSED = "OOM|OutOfMemory|out of memory|Traceback|ConnectionError"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Installation]:
    policy = ("--maxmemory-policy", "noeviction")
    with RedisServer(args=policy) as server, Installation(server, tmp_path) as site:
        yield site


@pytest.mark.parametrize(
    ("pool", "waiting"), [("prefork", 20), ("solo", 20), ("threads", 300), ("gevent", 20)]
)
def test_a_worker_that_starts_runs_what_is_there(site: Installation, pool: str, waiting: int) -> None:
    producer = site.producer()
    tasks = [str(number) for number in range(waiting)]
    for task in tasks:
        producer.send_task("work_late", [task])
    fill(site.redis)
    # With mingle and gossip, as most workers start.
    site.worker(pool=pool, args=(), expected=REFUSED)
    site.wait_ended(tasks)
    wait_until(lambda: site.ready() == site.unacked() == 0, 30, "acks")


def test_a_worker_that_is_killed_loses_nothing(site: Installation, tmp_path: Path) -> None:
    """Another one gives back what it held, and runs that and all else. Nothing is freed for it."""
    producer, gate = site.producer(), tmp_path / "gate"
    running, held, waiting = (
        [f"{what} {number}" for number in range(2)] for what in ("running", "held", "waiting")
    )
    first = site.worker(pool="prefork", concurrency=2)
    for task in [*running, *held]:
        producer.send_task("work_late", [task], kwargs={"gate": str(gate)})
    site.wait_started(*running)
    wait_until(lambda: site.unacked() == 4, 20, "the prefetch of all")
    for task in waiting:
        producer.send_task("work", [task], countdown=5)
    fill(site.redis)
    first.kill()
    gate.touch()
    site.worker(pool="prefork", concurrency=2, args=(), expected=REFUSED)
    site.wait_ended([*running, *held, *waiting])
    wait_until(lambda: (site.ready(), site.unacked(), site.scheduled()) == (0, 0, 0), 30, "acks")
    assert set(site.ledger.run_twice()) <= set(running)


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_lost_its_connections_goes_on(site: Installation, pool: str) -> None:
    producer = site.producer()
    worker = site.worker(pool=pool, args=(), expected=f"{REFUSED}|{LOST_CONNECTION}")
    tasks = [str(number) for number in range(20)]
    for task in tasks:
        producer.send_task("work_late", [task], countdown=4)
    wait_until(lambda: site.scheduled() == len(tasks), 20, "all to be scheduled")
    fill(site.redis)
    site.redis.client_kill_filter(_type="normal", skipme=True)
    site.redis.client_kill_filter(_type="pubsub", skipme=True)
    site.wait_ended(tasks)
    assert worker.running


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_could_not_publish_its_retry_comes_back(site: Installation, pool: str) -> None:
    producer = site.producer(task_publish_retry=False)
    site.worker(pool=pool, expected=f"{REFUSED}|Reject|OperationalError|reject requeue")
    tasks = ["one"] if pool == "solo" else ["one", "two"]
    for task in tasks:
        producer.send_task("retry_late", [task])
    site.wait_started(*tasks)
    fill(site.redis)
    wait_until(lambda: site.unacked() == 0, 30, "that their retry has failed")
    site.redis.config_set("maxmemory", 0)
    site.wait_ended(tasks)
    wait_until(lambda: (site.ready(), site.unacked(), site.scheduled()) == (0, 0, 0), 30, "acks")
