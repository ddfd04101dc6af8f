"""What a worker has received and not begun goes back at once when it is told to stop. It runs once, elsewhere.

All pools stop at the same time, which takes a quarter of the time.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.end_to_end.installation import Installation
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until

POOLS = ("prefork", "threads", "gevent", "eventlet", "solo")
#: These cannot end a task. A worker that is told to end at once waits for it.
CANNOT_KILL = ("threads",)

TERM, QUIT = signal.SIGTERM, signal.SIGQUIT

#: Seconds. What is published with a countdown in this protocol waits in the worker, as with ``redis://``.
COUNTDOWN = 6
PREFETCHED = 6


class Fleet:
    """A worker of each pool with a queue of its own. Two tasks run in each (one in ``solo``), as long as there
    is no file `gate`, and all others wait."""

    def __init__(self, site: Installation, gate: Path, pools: Sequence[str]) -> None:
        self.site = site
        self.gate = gate
        self.pools = pools
        self.workers = {
            pool: site.start_worker(
                pool=pool, concurrency=self.places(pool), prefetch_multiplier=20, queues=[pool]
            )
            for pool in pools
        }
        for worker in self.workers.values():
            worker.wait_ready()
        self._producer = site.producer()
        self._old_producer = site.producer(task_protocol=1)
        self._publish()

    def places(self, pool: str) -> int:
        return 1 if pool == "solo" else 2

    def running(self, pool: str) -> list[str]:
        return [f"{pool} running {ack}" for ack in ("late", "early")[: self.places(pool)]]

    def waiting(self, pool: str) -> list[str]:
        prefetched = [f"prefetched {number}" for number in range(PREFETCHED)]
        names = ("limited early", "limited late", "countdown early", "countdown late", *prefetched)
        return [f"{pool} {name}" for name in names]

    def _publish(self) -> None:
        for pool in self.pools:
            # The next ones wait for an hour.
            self._send("limited", pool, "unlimited early")
            self._send("limited_late", pool, "unlimited late")
        self.site.wait_ended([f"{pool} unlimited {ack}" for pool in self.pools for ack in ("early", "late")])
        for pool in self.pools:
            self._send("limited", pool, "limited early")
            self._send("limited_late", pool, "limited late")
            for ack, task in (("early", "work"), ("late", "work_late")):
                self._old_producer.send_task(
                    task, [f"{pool} countdown {ack}"], queue=pool, countdown=COUNTDOWN
                )
            for ack, task in (("late", "work_late"), ("early", "work"))[: self.places(pool)]:
                self._send(task, pool, f"running {ack}", gate=str(self.gate))
        self.site.wait_started(*(label for pool in self.pools for label in self.running(pool)))
        for pool in self.pools:
            for number in range(PREFETCHED):
                self._send("work_late" if number % 2 else "work", pool, f"prefetched {number}")
        # A worker with greenlets, or one that runs its task itself, may have left some in Redis.
        wait_until(lambda: all(map(self._is_full, self.pools)), 20, "that the workers have taken them")

    def _send(self, task: str, pool: str, name: str, **kwargs: str) -> None:
        self._producer.send_task(task, [f"{pool} {name}"], kwargs=kwargs, queue=pool)

    def _is_full(self, pool: str) -> bool:
        return self.site.unacked(pool) > 4 + self.places(pool) or pool in ("gevent", "eventlet", "solo")

    def signal(self, number: int) -> None:
        for worker in self.workers.values():
            os.kill(worker.pid, number)

    def wait_given_back(self, pool: str) -> None:
        count = len(self.waiting(pool))
        wait_until(lambda: self.site.ready(pool) == count, 20, f"that {pool} gives back {count}")

    def second(self) -> CeleryWorker:
        """A worker that runs what the others have left."""
        return self.site.worker(
            pool="threads", concurrency=4, queues=self.pools, settings={"worker_disable_rate_limits": True}
        )

    def ran_in(self, labels: Sequence[str]) -> set[int]:
        """The processes that have begun these tasks."""
        return {entry.pid for entry in self.site.ledger.entries("started") if entry.task in labels}


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def test_what_has_not_begun_runs_elsewhere_while_the_others_run(site: Installation, gate: Path) -> None:
    fleet = Fleet(site, gate, POOLS)
    fleet.signal(TERM)
    at_once = [pool for pool in POOLS if pool != "solo"]
    began = time.monotonic()
    for pool in at_once:
        fleet.wait_given_back(pool)
        print(pool, time.monotonic() - began)
    second = fleet.second()
    waiting = [label for pool in at_once for label in fleet.waiting(pool)]
    site.wait_ended(waiting)
    assert site.ledger.run_twice() == {}
    assert fleet.ran_in(waiting) == {second.pid}
    # The others still run.
    assert all(worker.running for worker in fleet.workers.values())
    gate.touch()
    for worker in fleet.workers.values():
        wait_until(lambda worker=worker: not worker.running, 30, "its end")
    everything = [label for pool in POOLS for label in (*fleet.waiting(pool), *fleet.running(pool))]
    site.wait_ended(everything)
    wait_until(lambda: not any(map(site.unacked, POOLS)), 20, "acks")
    assert site.ledger.run_twice() == {}
    assert fleet.ran_in(fleet.waiting("solo")) == {second.pid}
    assert not any(map(site.ready, POOLS))
