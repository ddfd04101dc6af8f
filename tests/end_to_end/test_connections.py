"""The connections of a worker: how many there are, and what happens when the server closes one that rests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.end_to_end.installation import Installation
from tests.faults.workers import LOST_CONNECTION, lose_connections
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

POOLS = ["prefork", "solo", "threads", "gevent"]

#: Celery's workers send an event that often, over a connection that the first one may open.
HEARTBEAT_S = 2.5

#: What a connection that waits for something has said last.
WAITING = ("bzpopmin", "brpop", "psubscribe", "client|list", "client")


def connections(site: Installation) -> list[dict[str, Any]]:
    """All but our own."""
    with site.server.client() as client:
        ours = {client.client_id(), site.redis.client_id()}
        return [each for each in client.client_list() if int(each["id"]) not in ours]


def resting(site: Installation) -> list[dict[str, Any]]:
    """Those that wait for nothing, and were not used for more than a second."""
    return [each for each in connections(site) if each["cmd"] not in WAITING and int(each["idle"]) > 1]


def close_what_rests(worker: CeleryWorker, site: Installation) -> None:
    """While *worker* is stopped: so no connection is closed that it uses at the moment."""
    os.killpg(worker.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: len(resting(site)) >= 2, 30, "connections that rest")
        for each in resting(site):
            site.redis.execute_command("CLIENT", "KILL", "ID", each["id"])
    finally:
        os.killpg(worker.pid, signal.SIGCONT)


def run_one(site: Installation, label: str) -> None:
    with site.producer() as producer:
        producer.send_task("work_late", [label])
    site.wait_ended([label])
    wait_until(lambda: site.unacked() == 0, 30, "its ack")


@pytest.mark.parametrize("pool", POOLS)
def test_one_that_rests_and_is_closed_costs_nothing(site: Installation, pool: str) -> None:
    """A server with `timeout` closes it, and so does many a load balancer."""
    worker = site.worker(pool=pool, args=())
    run_one(site, "before")
    for number in range(3):
        close_what_rests(worker, site)
        run_one(site, f"after {number}")
    assert "Connection to broker lost" not in worker.log()


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_has_one_more_than_with_redis(site: Installation, pool: str) -> None:
    def count(scheme: str) -> int:
        worker = site.worker(pool=pool, concurrency=2, scheme=scheme, args=())
        run_one(site, scheme)
        found = settled(lambda: connections_of(worker, site))
        worker.stop()
        return found

    ours, stock = count("redisdelay"), count("redis")
    assert 0 < ours <= stock + 1


def connections_of(worker: CeleryWorker, site: Installation) -> int:
    """How many the worker and its children hold; those that a child has inherited count once."""
    assert isinstance(site.server, RedisServer)
    port = site.server.port
    leader = psutil.Process(worker.pid)
    return len(
        {
            each.laddr
            for process in [leader, *leader.children(recursive=True)]
            for each in process.net_connections("tcp")
            if each.status == psutil.CONN_ESTABLISHED and each.raddr.port == port
        }
    )


def settled(count: Callable[[], int]) -> int:
    """What *count* tells when it has told the same for as long as a worker's heartbeat takes to come."""
    told: list[tuple[float, int]] = []

    def is_settled() -> bool:
        now, number = time.monotonic(), count()
        if told and told[-1][1] != number:
            told.clear()
        told.append((now, number))
        return now - told[0][0] > HEARTBEAT_S

    wait_until(is_settled, 20, "a number of connections that stays")
    return told[-1][1]


@pytest.mark.parametrize(
    ("pool", "task"),
    [
        *((pool, "work_late") for pool in ("prefork", "gevent", "eventlet")),
        # Celery cannot store that it is tried again.
        *((pool, "unstored_work") for pool in ("prefork", "gevent")),
    ],
)
def test_a_task_that_celery_ends_with_the_connection_runs_again(
    site: Installation, tmp_path: Path, pool: str, task: str
) -> None:
    gate = tmp_path / "gate"
    settings = {"worker_cancel_long_running_tasks_on_connection_loss": True}
    expected = f"{LOST_CONNECTION}|could not say|its result was lost"
    app = "tests.end_to_end.failed_app"
    worker = site.worker(pool=pool, concurrency=2, settings=settings, app=app, expected=expected)
    with site.producer() as producer:
        producer.send_task(task, ["ended"], kwargs={"gate": str(gate)})
    site.wait_started("ended")
    lose_connections(site, worker)
    wait_until(lambda: site.ledger.started() == ["ended", "ended"], 30, "that it runs again")
    gate.touch()
    site.wait_ended(["ended"])
    wait_until(lambda: site.unacked() == 0, 30, "its ack")
    assert site.ready() == 0
