"""The server's clock jumps while messages wait and tasks run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.installation import QUEUE, Installation
from tests.faults.application import running
from tests.faults.workers import LOST_CONNECTION
from tests.transport.kit import Site, publish
from tools.harness.moved_clock import MovedClockServer, compiler
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

pytestmark = pytest.mark.skipif(
    compiler() is None, reason="the clock is moved by a library made with cc, on Linux"
)

HOUR = 3600
LEASE = 6


@pytest.fixture
def clock() -> Iterator[MovedClockServer]:
    with MovedClockServer() as server:
        yield server


def test_messages(clock: MovedClockServer) -> None:
    with clock.client() as client:
        site = Site(clock.url(), client)
        channel = site.channel()
        publish(channel, "in half an hour", headers={"x-delay": HOUR * 500})
        publish(channel, "in two hours", headers={"x-delay": 2 * HOUR * 1000})
        publish(channel, "in four hours", headers={"x-delay": 4 * HOUR * 1000})
        with running(site.url) as application:
            publish(channel, "before")
            application.wait_received("before")

            clock.jump(HOUR)
            application.wait_received("in half an hour")
            publish(channel, "a moment later", headers={"x-delay": 300})
            application.wait_received("a moment later")

            clock.jump(-2 * HOUR)
            publish(channel, "an hour ago", headers={"x-delay": 300})
            application.wait_received("an hour ago")
            # Two hours from where the clock stood, three from where it stands.
            assert site.scheduled() == 2
            publish(channel, "at once")
            application.wait_received("at once")

            clock.jump(3 * HOUR + 60)
            application.wait_received("in two hours")
        assert site.scheduled() == 1
        assert (site.ready(), site.unacked()) == (0, 0)
        assert len(application.received) == len(set(application.received)) == 6
        site.close()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_workers(clock: MovedClockServer, tmp_path: Path, pool: str) -> None:
    gate = tmp_path / "gate"
    settings = {"broker_transport_options": {"visibility_timeout": LEASE}}
    with Installation(clock, tmp_path, **settings) as installation:
        running = run_behind(gate, installation, pool)
        producer = installation.producer()
        producer.send_task("work", ["in half an hour"], countdown=HOUR // 2)
        producer.send_task("work", ["in two hours"], countdown=2 * HOUR)

        clock.jump(HOUR)
        wait_until(lambda: installation.scheduled() == 1, 30, "what is due by the server's clock")
        wait_until(lambda: leases_are_right(installation, clock), 2 * LEASE, "renewed leases")
        clock.jump(-2 * HOUR)
        producer.send_task("work", ["at once"])
        installation.wait_ended(["at once"], timeout=30)
        wait_until(lambda: leases_are_right(installation, clock), 2 * LEASE, "renewed leases")
        assert installation.scheduled() == 1

        gate.touch()
        installation.wait_ended(running)
        # Celery has a clock, too, by which the task that it was given is not due.
        wait_until(lambda: installation.unacked() == 1, 30, "acks")
        assert sorted(installation.ledger.started()) == sorted([*running, "at once"])
        assert (installation.ready(), installation.scheduled()) == (0, 1)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_server_that_stands_still_for_longer_than_the_lease(
    server: RedisServer, tmp_path: Path, pool: str
) -> None:
    """To its clients, its clock jumps ahead: all leases have ended when it goes on."""
    gate = tmp_path / "gate"
    settings = {"broker_transport_options": {"visibility_timeout": 3}}
    with Installation(server, tmp_path, **settings) as installation:
        running = run_behind(gate, installation, pool)

        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(6)
        os.kill(server.pid, signal.SIGCONT)
        producer = installation.producer()
        after = [f"after {number}" for number in range(20)]
        for task in after:
            producer.send_task("work", [task])
        # All of them are taken now. Some may wait behind what still runs: Celery's prefetch count does not
        # know of tasks that came over the connection before.
        wait_until(lambda: installation.ready() == 0, 30, "workers that take again")

        gate.touch()
        installation.wait_ended([*running, *after])
        wait_until(lambda: installation.unacked() == 0, 30, "acks")
        assert installation.ledger.run_twice() == {}


def run_behind(gate: Path, installation: Installation, pool: str) -> list[str]:
    """Have three workers run four tasks that end when *gate* is there. Returns the tasks."""
    workers = [
        # A blocked client's time goes by the clock of the server, too.
        installation.start_worker(pool=pool, concurrency=2, prefetch_multiplier=1, expected=LOST_CONNECTION)
        for _ in range(3)
    ]
    for worker in workers:
        worker.wait_ready()
    producer = installation.producer()
    tasks = [f"running {number}" for number in range(4)]
    for task in tasks:
        producer.send_task("work_late", [task], kwargs={"gate": str(gate)})
    installation.wait_started(*tasks)
    return tasks


def leases_are_right(installation: Installation, clock: MovedClockServer) -> bool:
    """Whether all of them end within their time from now."""
    consumers: Any = installation.redis.zrange(f"redisdelay:{{{QUEUE}}}:consumers", 0, -1, withscores=True)
    now_ms = clock.now_ms()
    return all(now_ms < lease_end <= now_ms + LEASE * 1000 for _, lease_end in consumers)
