"""In which order messages reach tasks, and how many a worker has at a time."""

from __future__ import annotations

import time
from pathlib import Path

import celery
import pytest

from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.process import wait_until

#: As many steps as kombu has by default; 0 comes first.
PRIORITIES = (9, 3, 0, 6, 3, 9, 0, 6)


def test_priorities_are_respected(site: Installation) -> None:
    producer = site.producer()
    for countdown in (1, None):
        for number, priority in enumerate(PRIORITIES):
            task = f"{priority} {number} {countdown}"
            producer.send_task("work", [task], priority=priority, countdown=countdown)
    assert site.scheduled() == len(PRIORITIES)
    # All are due when the worker takes its first.
    schedule = f"redisdelay:{{{QUEUE}}}:schedule"
    [last_task] = site.redis.execute_command("ZRANGE", schedule, -1, -1)
    last = float(site.redis.execute_command("ZSCORE", schedule, last_task))
    wait_until(lambda: time.time() * 1000 > last, 30, "that all are due")
    site.worker(prefetch_multiplier=1)

    wait_until(lambda: len(site.ledger.ended()) == 2 * len(PRIORITIES), 20, "all")
    order = [int(task.split()[0]) for task in site.ledger.started()]
    assert order == sorted(order)


@pytest.mark.skipif(
    tuple(map(int, celery.__version__.split(".")[:2])) < (5, 6),
    reason="worker_disable_prefetch came with Celery 5.6",
)
def test_a_worker_without_prefetch_takes_what_it_can_run(site: Installation, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    settings = {"worker_disable_prefetch": True}
    first = site.worker(pool="prefork", concurrency=2, settings=settings)
    producer = site.producer()
    for number in range(2):
        producer.send_task("work_late", [f"long {number}"], kwargs={"gate": str(gate)})
    site.wait_started("long 0", "long 1")
    short = [f"short {number}" for number in range(6)]
    for number, task in enumerate(short):
        producer.send_task("work_late", [task], countdown=number % 2)

    # The first one has no process free, so all of them are for another worker.
    site.worker(pool="prefork", settings=settings)
    site.wait_ended(short)
    assert first.log().count("] received") == 2
    gate.touch()
    site.wait_ended(["long 0", "long 1"])
    assert site.ledger.run_twice() == {}
    assert site.ledger.early() == []
