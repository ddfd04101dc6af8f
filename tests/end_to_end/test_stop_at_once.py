"""A worker that is told to stop gives back at once what it has not begun. It runs once, elsewhere.

All pools stop at the same time, which takes a quarter of the time.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import celery
import pytest

from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until

POOLS = ("prefork", "threads", "gevent", "eventlet", "solo")
#: A worker with another pool does nothing while its task runs.
BESIDE_TASKS = ("prefork", "threads", "gevent", "eventlet")
#: A worker with another pool waits for its tasks even if it is told to end at once.
KILLED = ("prefork", "gevent", "eventlet", "solo")
#: What Celery logs then.
ENDED_AT_ONCE = "Traceback|WorkerTerminate|Switch|Terminated"
#: Seconds. What is published with a countdown in the old protocol waits in the worker, as with ``redis://``.
#: When the first is over, it waits for a place of the pool. The second is not over yet.
COUNTDOWNS = {"due": 1, "countdown": 4}
PREFETCHED = 4


class Fleet:
    """A worker of each pool, with a queue of its own. Two tasks run in each, in ``solo`` one, until there is
    a file *gate*. All others wait."""

    def __init__(self, site: Installation, gate: Path, expected: str | None = None) -> None:
        self.site = site
        self.gate = gate
        self.workers = {
            pool: site.start_worker(
                pool=pool,
                concurrency=self.places(pool),
                prefetch_multiplier=20,
                queues=[pool],
                expected=expected,
            )
            for pool in POOLS
        }
        for worker in self.workers.values():
            worker.wait_ready()
        self.producer = site.producer()
        self._old_producer = site.producer(task_protocol=1)
        self._publish()

    def places(self, pool: str) -> int:
        return 1 if pool == "solo" else 2

    def running(self, pool: str) -> list[str]:
        return [f"{pool} running {ack}" for ack in ("late", "early")[: self.places(pool)]]

    def waiting(self, pool: str) -> list[str]:
        prefetched = [f"prefetched {number}" for number in range(PREFETCHED)]
        others = [f"{what} {ack}" for what in ("limited", *COUNTDOWNS) for ack in ("early", "late")]
        return [f"{pool} {name}" for name in (*others, *prefetched)]

    def _publish(self) -> None:
        for pool in POOLS:
            # The next ones wait for an hour.
            self._send("limited", pool, "unlimited early")
            self._send("limited_late", pool, "unlimited late")
        self.site.wait_ended([f"{pool} unlimited {ack}" for pool in POOLS for ack in ("early", "late")])
        for pool in POOLS:
            self._send("limited", pool, "limited early")
            self._send("limited_late", pool, "limited late")
            for what, seconds in COUNTDOWNS.items():
                for ack, task in (("early", "work"), ("late", "work_late")):
                    self._old_producer.send_task(
                        task, [f"{pool} {what} {ack}"], queue=pool, countdown=seconds
                    )
            for ack, task in (("late", "work_late"), ("early", "work"))[: self.places(pool)]:
                self._send(task, pool, f"running {ack}", gate=str(self.gate))
        due = time.monotonic() + COUNTDOWNS["due"]
        self.site.wait_started(*(label for pool in POOLS for label in self.running(pool)))
        for pool in POOLS:
            for number in range(PREFETCHED):
                self._send("work_late" if number % 2 else "work", pool, f"prefetched {number}")
        # A worker with greenlets, or one that runs its task itself, may have left some in Redis.
        wait_until(lambda: all(map(self._is_full, POOLS)), 20, "that the workers have taken them")
        wait_until(lambda: time.monotonic() > due, 20, "that some are due")

    def _send(self, task: str, pool: str, name: str, **kwargs: str) -> None:
        self.producer.send_task(task, [f"{pool} {name}"], kwargs=kwargs, queue=pool)

    def _is_full(self, pool: str) -> bool:
        # One that runs is acked early.
        return self.site.unacked(pool) == len(self.waiting(pool)) + 1 or pool in (
            "gevent",
            "eventlet",
            "solo",
        )

    def signal(self, number: int) -> None:
        for worker in self.workers.values():
            os.kill(worker.pid, number)

    def wait_ended(self, *pools: str) -> None:
        wait_until(lambda: not any(self.workers[pool].running for pool in pools), 60, f"the end of {pools}")

    def wait_given_back(self, pool: str) -> None:
        count = len(self.waiting(pool))
        wait_until(lambda: self.site.ready(pool) == count, 20, f"that {pool} gives back {count}")

    def second(self) -> CeleryWorker:
        """A worker that runs what the others have left."""
        return self.site.worker(
            pool="threads", concurrency=4, queues=POOLS, settings={"worker_disable_rate_limits": True}
        )

    def ran_in(self, labels: Sequence[str]) -> set[int]:
        """The processes that have begun these tasks."""
        return {entry.pid for entry in self.site.ledger.entries("started") if entry.task in labels}


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def _check(
    fleet: Fleet, second: CeleryWorker, again: Sequence[str] = (), gave_back: Sequence[str] = POOLS
) -> None:
    """Everything runs once, but for what runs *again*. What had waited runs in the *second* worker, if it is
    of the pools that *gave_back*."""
    site = fleet.site
    wait_until(lambda: not any(site.ready(pool) + site.unacked(pool) for pool in POOLS), 30, "acks")
    assert site.ledger.run_twice() == dict.fromkeys(again, 2)
    assert set(site.ledger.ended()) >= {label for pool in POOLS for label in fleet.waiting(pool)}
    assert fleet.ran_in([label for pool in gave_back for label in fleet.waiting(pool)]) == {second.pid}


def test_what_has_not_begun_runs_elsewhere_while_the_rest_runs_on(site: Installation, gate: Path) -> None:
    fleet = Fleet(site, gate)
    fleet.signal(signal.SIGTERM)
    for pool in BESIDE_TASKS:
        fleet.wait_given_back(pool)
    second = fleet.second()
    site.wait_ended([label for pool in BESIDE_TASKS for label in fleet.waiting(pool)])
    assert all(worker.running for worker in fleet.workers.values())
    gate.touch()
    fleet.wait_ended(*POOLS)
    _check(fleet, second)
    assert set(site.ledger.ended()) >= {label for pool in POOLS for label in fleet.running(pool)}


@pytest.mark.thorough
def test_remote_control_asks_for_the_end(site: Installation, gate: Path) -> None:
    """With greenlets, Celery raises an exception where its loop waits for a place in the pool."""
    fleet = Fleet(site, gate)
    fleet.producer.control.shutdown()
    for pool in BESIDE_TASKS:
        fleet.wait_given_back(pool)
    gate.touch()
    fleet.wait_ended(*POOLS)
    # After its task, a solo worker may begin others before it reads what it was told.
    _check(fleet, fleet.second(), gave_back=BESIDE_TASKS)


@pytest.mark.thorough
@pytest.mark.parametrize("second", ["SIGTERM", "SIGQUIT"])
def test_a_second_signal(site: Installation, gate: Path, second: str) -> None:
    """What it cuts off runs again if it is acked late. A thread cannot be cut off."""
    fleet = Fleet(site, gate, ENDED_AT_ONCE)
    fleet.signal(signal.SIGTERM)
    for pool in BESIDE_TASKS:
        fleet.wait_given_back(pool)
    fleet.signal(signal.Signals[second])
    if second == "SIGQUIT":
        fleet.wait_ended(*KILLED)
    gate.touch()
    fleet.wait_ended(*POOLS)
    again = [fleet.running(pool)[0] for pool in KILLED] if second == "SIGQUIT" else []
    _check(fleet, fleet.second(), again)
    whole = {label for pool in POOLS for label in fleet.running(pool)[: None if not again else 1]}
    assert set(site.ledger.ended()) >= whole


@pytest.mark.thorough
def test_a_worker_that_is_told_to_end_at_once(site: Installation, gate: Path) -> None:
    fleet = Fleet(site, gate, ENDED_AT_ONCE)
    fleet.signal(signal.SIGQUIT)
    fleet.wait_ended(*KILLED)
    gate.touch()
    fleet.wait_ended(*POOLS)
    again = [fleet.running(pool)[0] for pool in KILLED]
    # Before 5.7, Celery runs what its threads have got.
    gave_back = POOLS if celery.VERSION >= (5, 7) else KILLED
    _check(fleet, fleet.second(), again, gave_back)


def test_what_redis_refuses_to_take_back_never_begins_and_goes_back_later(
    site: Installation, gate: Path
) -> None:
    worker = site.worker(pool="threads", prefetch_multiplier=4, expected="Could not give messages back")
    producer = site.producer()
    producer.send_task("work_late", ["running"], kwargs={"gate": str(gate)})
    site.wait_started("running")
    for number in range(3):
        producer.send_task("work_late", [f"waiting {number}"])
    wait_until(lambda: site.unacked() == 4, 20, "that the worker has all")
    os.kill(worker.pid, signal.SIGSTOP)
    # What goes back goes to a list of this name.
    site.redis.execute_command("SET", QUEUE, "no list")
    os.kill(worker.pid, signal.SIGTERM)
    os.kill(worker.pid, signal.SIGCONT)
    wait_until(lambda: "Could not give messages back" in worker.log(), 20, "the refusal")
    site.redis.execute_command("DEL", QUEUE)
    gate.touch()
    wait_until(lambda: not worker.running, 30, "its end")
    assert (site.ready(), site.unacked()) == (3, 0)
    assert site.ledger.ended() == ["running"]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_a_worker_has_received_of_a_cancelled_queue_runs_in_it(
    site: Installation, gate: Path, pool: str
) -> None:
    """As with ``redis://``. The worker goes on, so nothing has to be given to others."""
    worker = site.worker(pool=pool, prefetch_multiplier=4)
    producer = site.producer()
    labels = ["running", "first", "second", "third"]
    for label in labels:
        producer.send_task("work_late", [label], kwargs={"gate": str(gate)})
    wait_until(lambda: site.unacked() == 4, 20, "that the worker has all")
    site.wait_started("running")
    producer.control.cancel_consumer(QUEUE)
    wait_until(lambda: f"Canceling queue {QUEUE}" in worker.log(), 20, "that it has heard")
    producer.send_task("work_late", ["for others"])
    gate.touch()
    site.wait_ended(labels)
    wait_until(lambda: (site.unacked(), site.ready()) == (0, 1), 20, "the acks")
    assert site.ledger.started() == labels
