"""The connections of a worker: how many there are, and what happens when the server closes one that rests."""

from __future__ import annotations

from typing import Any

import pytest

from harness.process import wait_until
from tests.end_to_end.installation import Installation

POOLS = ["prefork", "solo", "threads", "gevent"]

#: What a connection that waits for something has said last.
WAITING = ("bzpopmin", "brpop", "psubscribe", "client|list", "client")


def connections(site: Installation) -> list[dict[str, Any]]:
    """All but our own."""
    with site.server.client() as client:
        ours = {client.client_id(), site.redis.client_id()}
        return [each for each in client.client_list() if int(each["id"]) not in ours]


def resting(site: Installation) -> list[dict[str, Any]]:
    """Those that wait for nothing, and were not used for a second."""
    return [each for each in connections(site) if each["cmd"] not in WAITING and int(each["idle"])]


def run_one(site: Installation, label: str) -> None:
    with site.producer() as producer:
        producer.send_task("work_late", [label])
    site.wait_ended([label], timeout=10)
    wait_until(lambda: site.unacked() == 0, 10, "its ack")


@pytest.mark.parametrize("pool", POOLS)
def test_one_that_rests_and_is_closed_costs_nothing(site: Installation, pool: str) -> None:
    """As a server with `timeout` does, and many a load balancer."""
    worker = site.worker(pool=pool, args=())
    run_one(site, "before")
    for number in range(3):
        wait_until(lambda: len(resting(site)) >= 2, 10, "connections that rest")
        for each in resting(site):
            site.redis.execute_command("CLIENT", "KILL", "ID", each["id"])
        run_one(site, f"after {number}")
    assert "Connection to broker lost" not in worker.log()


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_has_one_more_than_with_redis(site: Installation, pool: str) -> None:
    def count(scheme: str) -> int:
        worker = site.worker(pool=pool, concurrency=2, scheme=scheme, args=())
        run_one(site, scheme)
        # What was opened to begin with goes on resting.
        found = len(connections(site))
        worker.stop()
        return found - len(connections(site))

    assert count("redisdelay") <= count("redis") + 1
