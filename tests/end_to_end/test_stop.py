"""SIGTERM: what a worker had prefetched and not started returns at once."""

from __future__ import annotations

import os
import signal
import time
from fcntl import ioctl
from functools import partial
from pathlib import Path
from struct import pack, unpack
from termios import FIONREAD

import celery
import pytest
from kombu.transport.virtual.base import RESTORING_FMT

from kombu_redisdelay.transport.orphan_keeper import INTERVAL
from tests.end_to_end.installation import QUEUE, Installation
from tests.faults.workers import LOST_CONNECTION, kill_connections, lose_connections
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until

#: Before 5.7, a worker with greenlets may not end at SIGQUIT while its tasks compute, with ``redis://``
#: neither.
GREEN = ("gevent", "eventlet") if celery.VERSION >= (5, 7) else ()

PREFETCHED = [f"prefetched {number}" for number in range(6)]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("task", ["work", "work_late"])
def test_prefetched_messages_return_and_nothing_runs_twice(
    site: Installation, tmp_path: Path, task: str, pool: str
) -> None:
    gate = tmp_path / "gate"
    first = site.worker(pool=pool, prefetch_multiplier=10)
    producer = site.producer()
    producer.send_task(task, ["running"], kwargs={"gate": str(gate)})
    site.wait_started("running")
    for label in PREFETCHED:
        producer.send_task(task, [label])
    # Acked early, the running one is not held any more.
    held = len(PREFETCHED) + (task == "work_late")
    wait_until(lambda: (site.ready(), site.unacked()) == (0, held), 20, "the prefetch of all")
    # The last one may still lie with kombu, and Celery does not count that one.
    wait_until(lambda: first.log().count(" received") == 1 + len(PREFETCHED), 20, "that Celery has them")

    os.kill(first.pid, signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in first.log(), 20, "the shutdown")
    second = site.worker(pool=pool)
    gate.touch()
    wait_until(lambda: not first.running, 30, "the end of the first worker")

    site.wait_ended(["running", *PREFETCHED])
    wait_until(lambda: site.unacked() == 0, 20, "acks")
    assert site.ledger.run_twice() == {}
    # They were given back, not found when the first worker was gone.
    if pool == "prefork":
        # With threads, Celery 5.5 runs what it has got before it ends.
        assert RESTORING_FMT.format(len(PREFETCHED)) in first.log()
    assert "Recovered" not in second.log()


#: Bytes that Celery writes before a task: how long it is. The worker may be stopped between the two.
_HEADER = 4


def _unread(pid: int) -> int:
    """How many bytes are in the pipes of a process that nobody has read."""
    found = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        if not os.readlink(path).startswith("pipe:"):
            continue
        pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            [unread] = unpack("i", ioctl(pipe, FIONREAD, pack("i", 0)))
        finally:
            os.close(pipe)
        found += unread
    return found


def _stopped_process(site: Installation, worker: CeleryWorker) -> int:
    """Stop the process of the pool, which has run a task: before it has said that it is there, the worker
    gives it none, nor before it has said that its task is done. The worker has read all that it has said:
    what is unread then is new."""
    site.producer().send_task("work_late", ["first"])
    site.wait_ended(["first"])
    # Only a task that is acked late is acked for what its process says last.
    wait_until(lambda: site.unacked() == 0, 20, "the ack")
    [process] = map(int, Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split())
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: not _unread(process), 20, "that the worker has read all")
    return process


def _consumers(site: Installation) -> set[bytes]:
    return set(site.redis.execute_command("ZRANGE", f"redisdelay:{{{QUEUE}}}:consumers", 0, -1))


def _has_new(site: Installation, known: set[bytes]) -> bool:
    return bool(_consumers(site) - known)


@pytest.mark.parametrize("harm", ["SIGTERM", "CLIENT KILL"])
@pytest.mark.parametrize("task", ["work", "work_late"])
def test_a_task_that_a_pool_process_has_got_and_not_begun(site: Installation, task: str, harm: str) -> None:
    """The worker hears of it all the same, so that it does not run again."""
    worker = site.worker(pool="prefork", concurrency=1, expected=LOST_CONNECTION)
    producer = site.producer()
    process = _stopped_process(site, worker)
    producer.send_task(task, ["got"])
    wait_until(lambda: _unread(process) > _HEADER, 20, "that the process has it")
    began = time.monotonic()
    if harm == "SIGTERM":
        os.kill(worker.pid, signal.SIGTERM)
        wait_until(lambda: "Warm shutdown" in worker.log(), 20, "the shutdown")
    else:
        for _ in range(2):
            known = _consumers(site)
            kill_connections(site)
            wait_until(partial(_has_new, site, known), 30, "that it consumes again")
        # Whoever looked after the message might give it back by now.
        wait_until(lambda: time.monotonic() > began + 4 * INTERVAL, 30, "some time")
        assert (site.unacked(), site.ready()) == (1, 0)
    os.kill(process, signal.SIGCONT)
    # Celery waits for 30 seconds for a process of which it hears nothing.
    wait_until(lambda: site.ledger.ended() == ["first", "got"] and site.unacked() == 0, 10, "the ack")
    if harm == "SIGTERM":
        wait_until(lambda: not worker.running, 10, "its end")
    else:
        producer.send_task(task, ["another"])
        site.wait_ended(["another"])
    assert site.ready() == 0
    assert site.ledger.run_twice() == {}


@pytest.mark.parametrize("task", ["work", "work_late"])
def test_a_task_that_has_ended_and_of_which_the_worker_has_not_heard(
    site: Installation, tmp_path: Path, task: str
) -> None:
    """Its process has ended, too. The worker, which was busy, sees first that its connection is lost."""
    worker = site.worker(pool="prefork", concurrency=1, expected=f"{LOST_CONNECTION}|exited with")
    producer = site.producer()
    process = _stopped_process(site, worker)
    gate = tmp_path / "gate"
    producer.send_task(task, ["ended"], kwargs={"gate": str(gate)})
    wait_until(lambda: _unread(process) > _HEADER, 20, "that the process has it")
    os.kill(worker.pid, signal.SIGSTOP)
    known = _consumers(site)
    kill_connections(site)
    os.kill(process, signal.SIGCONT)
    site.wait_started("ended")
    begun = _unread(worker.pid)
    gate.touch()
    wait_until(lambda: _unread(worker.pid) > begun, 20, "the result")
    os.kill(process, signal.SIGKILL)
    os.kill(worker.pid, signal.SIGCONT)
    wait_until(partial(_has_new, site, known), 30, "that it consumes again")
    producer.send_task(task, ["another"])
    site.wait_ended(["ended", "another"])
    wait_until(lambda: site.unacked() == site.ready() == site.scheduled() == 0, 20, "the acks")
    assert site.ledger.run_twice() == {}


def test_a_gevent_worker_with_a_full_pool_that_is_told_to_end_at_once(site: Installation) -> None:
    """Its main greenlet waits for room with a message that is to blame for nothing."""
    worker = site.worker(pool="gevent", concurrency=1, prefetch_multiplier=4, expected="Switch|Traceback")
    producer = site.producer()
    for label in ("running", "waiting"):
        producer.send_task("work_late", [label], {"seconds": 600})
    site.wait_started("running")
    wait_until(lambda: site.unacked() == 2, 20, "that both are taken")
    os.kill(worker.pid, signal.SIGQUIT)
    wait_until(lambda: not worker.running, 20, "its end")
    assert "could not be handled" not in worker.log()
    wait_until(lambda: site.ready() == 2, 20, "that they are given back")


@pytest.mark.parametrize("pool", ["solo", *GREEN])
def test_what_runs_when_a_worker_is_told_to_end_at_once_is_not_lost(site: Installation, pool: str) -> None:
    """The handler of the signal runs in one of these tasks."""
    labels = ["a"] if pool == "solo" else list("abcdef")
    worker = site.worker(pool=pool, concurrency=len(labels), expected="Traceback|WorkerTerminate|Switch")
    producer = site.producer()
    for label in labels:
        producer.send_task("toil_late", [label])
    site.wait_started(*labels)
    os.kill(worker.pid, signal.SIGQUIT)
    wait_until(lambda: not worker.running, 30, "its end")
    assert site.ledger.ended() == []
    wait_until(lambda: site.ready() == len(labels), 20, "that all are given back")
    assert site.unacked() == 0


def test_what_threads_run_when_a_worker_is_told_twice_to_end_runs_once(
    site: Installation, tmp_path: Path
) -> None:
    """A thread cannot be ended, so the worker waits for it; what has not begun goes back."""
    gate = tmp_path / "gate"
    worker = site.worker(pool="threads", concurrency=2, prefetch_multiplier=2)
    producer = site.producer()
    for label in "abcd":
        producer.send_task("work_late", [label], kwargs={"gate": str(gate)})
    site.wait_started("a", "b")
    wait_until(lambda: site.unacked() == 4, 20, "that all are taken")
    os.kill(worker.pid, signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.log(), 20, "the shutdown")
    os.kill(worker.pid, signal.SIGQUIT)
    wait_until(lambda: "terminate all running" in worker.log(), 20, "the second one")
    gate.touch()
    wait_until(lambda: not worker.running, 20, "its end")
    assert set(site.ledger.ended()) >= {"a", "b"}
    # Celery before 5.7 also runs what its threads have not begun.
    assert (len(site.ledger.ended()) + site.ready(), site.unacked()) == (4, 0)
    assert site.ledger.run_twice() == {}


def test_after_an_outage_no_consumer_stays_listed(site: Installation, tmp_path: Path) -> None:
    """The task of the connection that was lost ends last. What has looked after it has no time left."""
    gate = tmp_path / "gate"
    worker = site.worker(pool="threads", expected=LOST_CONNECTION)
    site.producer().send_task("work_late", ["running"], kwargs={"gate": str(gate)})
    site.wait_started("running")
    lose_connections(site, worker)
    os.kill(worker.pid, signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.log(), 20, "the shutdown")
    gate.touch()
    wait_until(lambda: not worker.running, 30, "its end")
    consumers = f"redisdelay:{{{QUEUE}}}:consumers"
    assert site.redis.execute_command("ZRANGE", consumers, 0, -1) == []
    assert site.ledger.run_twice() == {}
    assert site.unacked() == site.ready() == 0


def test_a_solo_worker_that_is_told_to_end_begins_nothing_more(site: Installation, tmp_path: Path) -> None:
    """As with ``redis://``: what it has prefetched goes back."""
    gate = tmp_path / "gate"
    producer = site.producer()
    for label in ("running", "prefetched", "too"):
        producer.send_task("work_late", [label], kwargs={"gate": str(gate)})
    worker = site.worker(pool="solo", prefetch_multiplier=4)
    site.wait_started("running")
    os.kill(worker.pid, signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.log(), 20, "the shutdown")
    gate.touch()
    wait_until(lambda: not worker.running, 20, "its end")
    assert site.ledger.started() == ["running"]
    assert (site.unacked(), site.ready()) == (0, 2)
