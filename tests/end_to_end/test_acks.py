"""Acks are written where Celery calls them, in every pool: early ones before the task starts, and late ones
make room at once."""

from __future__ import annotations

from collections.abc import Mapping

from tests.end_to_end.installation import Installation
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until

#: Where an early ack is done before the task starts: in its own process, thread or greenlet.
POOLS = {"solo": 1, "threads": 2, "gevent": 2, "eventlet": 2}

#: Of one slot each, so a worker that runs one a second takes longer than we wait.
TASKS, PATIENCE = 150, 60.0


def workers(site: Installation, pools: Mapping[str, int]) -> dict[str, CeleryWorker]:
    """A worker for each pool, with a queue of its own. They are ready."""
    started = {
        pool: site.start_worker(pool=pool, concurrency=concurrency, queues=[pool], prefetch_multiplier=1)
        for pool, concurrency in pools.items()
    }
    for worker in started.values():
        worker.wait_ready()
    return started


def test_what_was_acked_early_does_not_begin_twice(site: Installation) -> None:
    producer = site.producer()
    for pool, worker in workers(site, POOLS).items():
        # It never ends, and no greenlet runs meanwhile.
        producer.send_task("block", [pool], queue=pool)
        site.wait_started(pool)
        worker.kill()
    after = [f"after {pool}" for pool in POOLS]
    workers(site, POOLS)
    for pool in POOLS:
        # The worker that starts has given back by then what the other one held.
        wait_until(lambda pool=pool: site.unacked(pool) == 0, 30, "acks")  # type: ignore[misc]
        producer.send_task("work", [f"after {pool}"], queue=pool)
    site.wait_ended(after)
    assert sorted(site.ledger.started()) == sorted([*POOLS, *after])


def test_late_acks_make_room_at_once(site: Installation) -> None:
    producer = site.producer()
    pools = dict.fromkeys(POOLS, 1)
    tasks = [f"{pool} {number}" for number in range(TASKS) for pool in pools]
    for task in tasks:
        producer.send_task("work_late", [task], queue=task.split()[0])
    workers(site, pools)
    site.wait_ended(tasks, timeout=PATIENCE)
    assert len(site.ledger.started()) == len(tasks)


def test_a_time_limit_interrupts_no_ack(site: Installation) -> None:
    """A task that ends at about its time limit is acked, or failed and acked; the worker goes on."""
    producer = site.producer(task_ignore_result=True)
    site.start_worker(
        pool="gevent", concurrency=10, queues=["gevent"], expected="TimeLimitExceeded|Hard time limit"
    ).wait_ready()
    limit = 0.1
    for number in range(60):
        seconds = limit + (number % 10 - 5) / 1000
        producer.send_task("work_late", [f"task {number}", seconds], queue="gevent", time_limit=limit)
    site.wait_started(*(f"task {number}" for number in range(60)))
    wait_until(lambda: (site.unacked("gevent"), site.ready("gevent")) == (0, 0), 30, "acks")
    producer.send_task("work_late", ["after"], queue="gevent")
    site.wait_ended(["after"])
