"""A worker that dies loses no task: another one runs what it had not finished, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kombu_redisdelay import Messages, Queues, Selection
from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until

CONSUMERS = f"redisdelay:{{{QUEUE}}}:consumers"

DONE = ["done 1", "done 2"]
RUNNING = ["running 1", "running 2"]
PREFETCHED = ["prefetched 1", "prefetched 2", "prefetched 3"]
WAITING = ["waiting 1", "waiting 2"]

IN_A_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


class IsolatedWorker(CeleryWorker):
    """A worker of which nobody outside can tell whether it is alive, as on another machine."""

    def command(self) -> Sequence[str]:
        return [*IN_A_NAMESPACE, *super().command()]


def load(site: Installation, gate: Path) -> None:
    """Give the only worker, which has two processes, tasks of every kind.

    Those that have to keep it busy run until there is a file at *gate*.
    """
    producer = site.producer()
    for task in WAITING:
        # Not while the first worker lives, whatever the time that takes.
        producer.send_task("work_late", [task], countdown=600)
    for task in DONE:
        producer.send_task("work_late", [task])
    site.wait_ended(DONE)
    # What ended was acked: nothing is held any more.
    wait_until(lambda: site.unacked() == 0, 20, "acks")
    for task in [*RUNNING, *PREFETCHED]:
        producer.send_task("work_late", [task], kwargs={"gate": str(gate)})
    site.wait_started(*RUNNING)
    held = len(RUNNING) + len(PREFETCHED)
    wait_until(lambda: site.unacked() == held, 20, "the prefetch of all")


def everything_ran(site: Installation) -> None:
    with Messages(site.producer()) as delayed:
        for message in list(delayed.select(Selection(state="scheduled"))):
            assert delayed.reschedule(ids=[message.id], countdown=1)
    site.wait_ended([*RUNNING, *PREFETCHED, *WAITING])
    assert site.ledger.run_twice() == dict.fromkeys(RUNNING, 2)
    wait_until(lambda: site.unacked() == 0, 20, "acks")
    assert (site.ready(), site.scheduled()) == (0, 0)
    assert sorted(site.ledger.ended()) == sorted([*DONE, *RUNNING, *PREFETCHED, *WAITING])
    for entry in site.ledger.entries("ended"):
        came_back = entry.task in (*RUNNING, *PREFETCHED)
        assert entry.redelivered is came_back, entry
        assert entry.deliveries == (1 if came_back else None), entry


def test_a_worker_that_starts_takes_over_at_once_from_one_that_died_on_the_same_machine(
    site: Installation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    # A lease that would outlast the test, and looks for consumers that are gone every 10 s only.
    settings = {"broker_transport_options": {"visibility_timeout": 3600}}
    first = site.worker(pool="prefork", concurrency=2, settings=settings)
    load(site, gate)

    first.kill()
    gate.touch()
    second = site.worker(pool="prefork", concurrency=2, settings=settings)

    site.wait_ended([*RUNNING, *PREFETCHED], timeout=7)
    everything_ran(site)
    assert "the process is gone" in second.log()


def test_a_worker_that_stands_by_need_not_wait_for_the_lease_on_the_same_machine(
    site: Installation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    # The other worker looks for consumers that are gone every second.
    settings = {"broker_transport_options": {"visibility_timeout": 3}}
    first = site.worker(pool="prefork", concurrency=2, settings=settings)
    load(site, gate)
    second = site.worker(pool="prefork", concurrency=2, settings=settings)

    first.kill()
    gate.touch()

    everything_ran(site)
    assert "the process is gone" in second.log()


def test_a_worker_that_may_be_alive_is_replaced_when_its_lease_has_ended(
    site: Installation, tmp_path: Path
) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a PID namespace needs root and unshare")
    probe = subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"no PID namespace to be had here: {probe.stderr}")
    gate = tmp_path / "gate"
    # The other worker looks for consumers that are gone every second.
    settings = {"broker_transport_options": {"visibility_timeout": 3}}
    first = site.worker(kind=IsolatedWorker, pool="prefork", concurrency=2, settings=settings)
    load(site, gate)
    [consumer] = site.redis.execute_command("ZRANGE", CONSUMERS, 0, -1)
    # It has nothing to do yet, and can prove nothing.
    second = site.worker(pool="prefork", concurrency=2, settings=settings)

    first.kill()
    gate.touch()
    lease_end = float(site.redis.execute_command("ZSCORE", CONSUMERS, consumer)) / 1000

    everything_ran(site)
    came_back = [entry for entry in site.ledger.entries("started") if entry.redelivered]
    assert min(entry.at for entry in came_back) >= lease_end
    assert "its lease has ended" in second.log()


def test_who_waits_for_the_rate_to_allow_the_next_message_is_replaced(site: Installation) -> None:
    tasks = [f"task {number}" for number in range(12)]
    producer = site.producer()
    with Queues(producer) as queues:
        queues.limit(QUEUE, rate="3/s", burst=1)
    for task in tasks:
        producer.send_task("work", [task])
    workers = {worker.pid: worker for worker in (site.worker(prefetch_multiplier=1) for _ in range(3))}
    for count in (3, 6):
        site.wait_ended(tasks[:count])
        # It was told when the next one may be taken. Nobody else is woken then.
        workers[site.ledger.entries("ended")[-1].pid].kill()

    site.wait_ended(tasks)
    times = [entry.at for entry in site.ledger.entries("started")]
    assert len(times) == len(tasks)
    # Whoever is not woken looks once a second.
    assert (len(tasks) - 1) / 3 - 0.1 < times[-1] - times[0] < (len(tasks) - 1) / 3 + 2 * 1
