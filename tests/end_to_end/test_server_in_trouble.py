"""Redis answers, and refuses, for longer than a lease or while a worker starts: no worker ends, and nothing
runs twice. ``python -m tests.chaos --trouble`` tries each pool with each answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.installation import Installation
from tests.faults.workers import LOST_CONNECTION
from tools.harness import trouble
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy
from tools.harness.redis_server import HOST, RedisServer

POOLS = [
    "threads",
    *(pytest.param(pool, marks=pytest.mark.thorough) for pool in ("prefork", "solo", "gevent")),
]

#: Seconds. No pause is longer than a tenth of it.
LEASE = 2.0
SETTINGS: dict[str, Any] = {
    "broker_transport_options": {"visibility_timeout": LEASE},
    "broker_connection_retry_on_startup": True,
}

#: What is said of a server that refuses.
REFUSED = "Redis refuses|refuse|serves this process again|renewed again|Could not"
LOST = (
    f"{REFUSED}|{LOST_CONNECTION}|Refuses|BusyLoadingError|LOADING|loading|max number of clients|Trying again"
)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(args=trouble.WITH_USER) as server:
        yield server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def site(server: RedisServer, tmp_path: Path) -> Iterator[Installation]:
    with Installation(server, tmp_path, **SETTINGS) as site:
        yield site


def status_of(worker: CeleryWorker) -> int | None:
    wait_until(lambda: not worker.running, 30, "that it ends")
    return worker._started.returncode


@pytest.mark.parametrize("pool", POOLS)
def test_refused_for_longer_than_the_lease(
    site: Installation, server: RedisServer, tmp_path: Path, pool: str
) -> None:
    """What they hold stays with them, though each lease has ended."""
    gate = tmp_path / "gate"
    workers = [
        site.start_worker(pool=pool, concurrency=2, prefetch_multiplier=1, expected=REFUSED) for _ in range(2)
    ]
    for worker in workers:
        worker.wait_ready()
    slots = 2 if pool == "solo" else 4
    producer = site.producer()
    running = [f"running {number}" for number in range(slots)]
    for label in running:
        producer.send_task("work_late", [label], kwargs={"gate": str(gate)})
    site.wait_started(*running)
    with trouble.misconf(server):
        began = time.monotonic()
        gate.touch()
        site.wait_ended(running)
        wait_until(lambda: time.monotonic() - began > 2 * LEASE, 60, "the end of two leases")
    producer.send_task("work_late", ["after"])
    site.wait_ended(["after"])
    wait_until(lambda: site.unacked() == site.ready() == 0, 20, "acks")
    assert all(worker.running for worker in workers)
    assert site.ledger.run_twice() == {}


@contextmanager
def too_many_clients(server: RedisServer, proxy: Proxy) -> Iterator[Callable[[], int]]:
    with trouble.too_many_clients(server) as client:
        yield lambda: int(client.info("stats")["rejected_connections"])


@contextmanager
def loading(server: RedisServer, proxy: Proxy) -> Iterator[Callable[[], int]]:
    proxy.refuse("LOADING Redis is loading the dataset in memory")
    with server.client() as client:
        client.execute_command("CLIENT", "KILL", "USER", trouble.USER)
        yield lambda: int(client.info("stats")["total_connections_received"])
    proxy.serve()


@pytest.mark.parametrize(
    "refuse", [loading, pytest.param(too_many_clients, marks=pytest.mark.thorough)], ids=lambda f: f.__name__
)
def test_a_try_that_is_refused_is_not_counted(
    site: Installation,
    server: RedisServer,
    proxy: Proxy,
    refuse: Callable[[RedisServer, Proxy], AbstractContextManager[Callable[[], int]]],
) -> None:
    """Celery may connect three times, at the start and later."""
    settings = {**SETTINGS, "broker_connection_max_retries": 3}

    def wait_for_ten(tries: Callable[[], int]) -> None:
        before = tries()
        wait_until(lambda: tries() >= before + 10, 30, "ten tries")

    producer = site.producer()
    producer.send_task("work", ["first"])
    with refuse(server, proxy) as tries:
        worker = site.start_worker(
            url=trouble.url_of_user(proxy.port), pool="threads", settings=settings, expected=LOST
        )
        wait_for_ten(tries)
    site.wait_ended(["first"])
    with refuse(server, proxy) as tries:
        wait_for_ten(tries)
    producer.send_task("work", ["second"])
    site.wait_ended(["second"])
    assert worker.running


@pytest.mark.parametrize(
    "begin",
    [trouble.misconf, pytest.param(trouble.busy, marks=pytest.mark.thorough)],
    ids=["MISCONF", "BUSY"],
)
def test_a_worker_that_starts_waits(site: Installation, server: RedisServer, begin: trouble.Trouble) -> None:
    producer = site.producer()
    producer.send_task("work", ["first"])
    with begin(server):
        worker = site.start_worker(pool="threads", expected=LOST)
        wait_until(lambda: "Redis refuses" in worker.log() or not worker.running, 30, "that it is refused")
    site.wait_ended(["first"])
    assert worker.running
    assert "CRITICAL" not in worker.log()


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (["-evalsha", "-eval"], "'evalsha'"),
        pytest.param(["resetkeys", "~another"], "celery", marks=pytest.mark.thorough),
    ],
    ids=["command", "queue"],
)
def test_a_worker_that_never_had_its_permissions_ends(
    site: Installation, server: RedisServer, rules: list[str], named: str
) -> None:
    with trouble.no_permission(server, trouble.USER, *rules):
        worker = site.start_worker(
            url=trouble.url_of_user(server.port), expected="permission|CRITICAL|ERROR|Error|Traceback"
        )
        assert status_of(worker) == 1
    [*_, sentence] = [line for line in worker.log().splitlines() if "permission" in line]
    assert named in sentence


def test_a_worker_that_was_served_waits_for_its_channels(site: Installation, server: RedisServer) -> None:
    """Redis closes the connection of who may not listen any more, and refuses what is published there."""
    worker = site.start_worker(pool="threads", url=trouble.url_of_user(server.port), expected=LOST)
    site.producer().send_task("work_late", ["first"])
    site.wait_ended(["first"])
    # The wait for the first message was answered before it ran, and so is the wait for another one here.
    with trouble.no_permission(server, trouble.USER, "resetchannels"):
        wait_until(lambda: "Redis refuses" in worker.log() or not worker.running, 30, "that it is refused")
    site.producer().send_task("work_late", ["after"])
    site.wait_ended(["after"])
    assert worker.running
    assert "CRITICAL" not in worker.log()


def test_the_address_leads_to_another_server(
    site: Installation, server: RedisServer, proxy: Proxy, tmp_path: Path
) -> None:
    """What was the primary is a replica now. The worker is connected to it, and it answers."""
    worker = site.worker(
        url=trouble.url_of_user(proxy.port), pool="threads", expected=f"{LOST}|NotThePrimary|not the primary"
    )
    producer = site.producer()
    producer.send_task("work_late", ["before"], kwargs={"gate": str(tmp_path / "gate")})
    site.wait_started("before")
    with RedisServer(args=trouble.WITH_USER) as another:
        with another.client() as client:
            client.replicaof(HOST, server.port)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", 30, "the copy")
            client.replicaof("NO", "ONE")
            site.redis.replicaof(HOST, another.port)
            proxy.lead_to(another.port)
            (tmp_path / "gate").touch()
            app = site.producer()
            app.conf.broker_url = another.url()
            app.send_task("work", ["after"])
            site.wait_ended(["before", "after"])
            wait_until(lambda: not client.keys("redisdelay:{celery}:unacked:*"), 20, "acks")
        assert site.ledger.run_twice() == {}
        assert worker.running
        worker.stop()


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_is_told_to_end_meanwhile(
    site: Installation, server: RedisServer, tmp_path: Path, pool: str
) -> None:
    """It ends though Redis does not serve it, and runs nothing twice if Redis does in time."""
    gate = tmp_path / "gate"
    worker = site.worker(pool=pool, concurrency=2, expected=REFUSED)
    running = ["a"] if pool == "solo" else ["a", "b"]
    for label in running:
        site.producer().send_task("work_late", [label], kwargs={"gate": str(gate)})
    site.wait_started(*running)
    with trouble.misconf(server):
        gate.touch()
        site.wait_ended(running)
        wait_until(lambda: "Redis refuses" in worker.log(), 20, "that its acks are refused")
        os.kill(worker.pid, signal.SIGTERM)
        wait_until(lambda: "Warm shutdown" in worker.log(), 20, "the shutdown")
    wait_until(lambda: not worker.running, 20, "its end")
    assert (site.ready(), site.unacked()) == (0, 0)


@pytest.mark.once
def test_a_worker_whose_server_refuses_undeclared_keys_ends(site: Installation) -> None:
    worker = site.start_worker(app="tests.end_to_end.undeclared_app", expected="CRITICAL")
    assert status_of(worker) == 1
    [sentence] = [line for line in worker.log().splitlines() if "CRITICAL" in line]
    assert "--default_lua_flags=allow-undeclared-keys" in sentence
    assert "Traceback" not in worker.log()
