"""What a worker spends on tasks that wait: next to nothing."""

from __future__ import annotations

import psutil
import pytest

from tests.end_to_end.installation import QUEUE, Installation

TASKS = 5_000

#: Commands that Redis gets while a worker stops. A worker on redis:// gives every task back, one by one.
STOP_LIMIT = 1000
POOLS = ("solo", "prefork")


def used_memory(pid: int) -> float:
    """What would be free if the process ended, in MB."""
    return float(psutil.Process(pid).memory_full_info().uss) / 1e6


def commands(site: Installation) -> int:
    """How many Redis has been given since it runs."""
    return int(site.redis.info("stats")["total_commands_processed"])


@pytest.mark.once
def test_waiting_tasks_take_no_memory_and_do_not_delay_the_end(site: Installation) -> None:
    workers = {pool: site.start_worker(pool=pool, queues=[QUEUE, pool]) for pool in POOLS}
    for worker in workers.values():
        worker.wait_ready()
    producer = site.producer()

    def every_worker_runs(label: str) -> None:
        for pool in POOLS:
            producer.send_task("work", [f"{label} {pool}"], queue=pool)
        site.wait_ended([f"{label} {pool}" for pool in POOLS])

    every_worker_runs("before")
    before = {pool: used_memory(worker.pid) for pool, worker in workers.items()}
    with producer.producer_or_acquire() as publisher:
        for number in range(TASKS):
            producer.send_task("work", [str(number)], countdown=3600, producer=publisher)
    assert site.scheduled() == TASKS
    every_worker_runs("after")
    growth = {pool: used_memory(worker.pid) - before[pool] for pool, worker in workers.items()}

    assert max(growth.values()) < 5, growth
    for pool, worker in workers.items():
        before_stop = commands(site)
        worker.stop()
        assert commands(site) - before_stop < STOP_LIMIT, pool
    assert site.scheduled() == TASKS
