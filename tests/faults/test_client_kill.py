"""CLIENT KILL: workers connect again, and what ran meanwhile is acked."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.installation import Installation
from tests.faults.workers import (
    connections,
    kill_connections,
    start_a_worker_for_each,
)
from tools.harness.process import wait_until

POOLS = ("prefork", "threads", "gevent")


def test_of_each_connection_one_by_one_and_of_all_at_once(installation: Installation, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    workers = start_a_worker_for_each(installation, *POOLS)
    producer = installation.producer()
    running = [f"running {pool}" for pool in POOLS]
    for task in running:
        producer.send_task("work_late", [task], kwargs={"gate": str(gate)}, queue=task.split()[1])
    installation.wait_started(*running)

    def every_worker_works(label: str) -> None:
        for pool in POOLS:
            producer.send_task("work", [f"{pool} {label}"], queue=pool)
        installation.wait_ended([f"{pool} {label}" for pool in POOLS], timeout=30)

    for connection in connections(installation):
        # It may be gone, when the worker replaced all of its connections.
        if installation.redis.execute_command("CLIENT", "KILL", "ID", connection):
            every_worker_works(f"without {connection}")
    for number in range(3):
        kill_connections(installation)
        every_worker_works(f"after all, {number}")

    gate.touch()
    installation.wait_ended(running)
    wait_until(lambda: not any(map(installation.unacked, POOLS)), 30, "acks")
    assert installation.ledger.run_twice() == {}
    assert not any(map(installation.ready, POOLS))
    assert all(worker.running for worker in workers)
