"""Redis goes away and comes back, while tasks wait and workers are connected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.installation import Installation
from tests.faults.workers import LOST_CONNECTION
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

POOLS = ("prefork", "gevent", "solo")


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_workers_reconnect_and_run_what_waited(tmp_path: Path, end: str) -> None:
    with (
        RedisServer(appendonly=True, args=("--appendfsync", "always")) as server,
        Installation(server, tmp_path) as site,
    ):
        workers = [site.start_worker(pool=pool, queues=[pool], expected=LOST_CONNECTION) for pool in POOLS]
        for worker in workers:
            worker.wait_ready()
        producer = site.producer()
        waiting = [f"{pool} {number}" for pool in POOLS for number in range(20)]
        for task in waiting:
            producer.send_task("work", [task], countdown=4, queue=task.split()[0])

        if end == "stopped":
            server.stop()
        else:
            server.kill()
        wait_until(
            lambda: all("Connection to broker lost" in worker.log() for worker in workers),
            30,
            "it was noticed",
        )
        server.restart()
        # By the same producer, whose connection is broken too.
        afterwards = [f"{pool} afterwards" for pool in POOLS]
        for pool, task in zip(POOLS, afterwards, strict=True):
            producer.send_task("work", [task], queue=pool)

        site.wait_ended([*waiting, *afterwards], timeout=40)
        assert site.ledger.run_twice() == {}
        assert site.ledger.early() == []
        assert all(worker.running for worker in workers)
        wait_until(lambda: not any(map(site.unacked, POOLS)), 20, "acks")
        assert not any(map(site.scheduled, POOLS))
