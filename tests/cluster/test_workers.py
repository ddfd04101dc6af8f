"""Celery workers of each pool while a cluster changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.end_to_end.installation import Installation
from tests.environments import PROXIES
from tests.faults.workers import LOST_CONNECTION
from tests.sentinel.load import Load, wait_all_work
from tools.harness.cluster import Cluster
from tools.harness.cluster_node import Node
from tools.harness.cluster_view import slot_of

POOLS = ("prefork", "threads", "solo", "gevent")
SCHEME = "redisdelay-cluster"

#: What a worker may log meanwhile. A failover may lose that it took a message.
EXPECTED = "|".join(
    [
        LOST_CONNECTION,
        # Of a server that starts again, with what it had.
        "BusyLoadingError",
        "The lease of this consumer was lost",
        "Keys have vanished from Redis",
        "Listening at another server of the cluster",
        "RedisClusterException",
    ]
)

#: Seconds within which everything goes on, once all slots are served.
SOON = 30.0

#: Seconds for which the whole cluster is down.
OUTAGE = 5.0


def move_slots(cluster: Cluster) -> None:
    """While there are messages in them: first some of the keys, and the others later."""
    for queue in POOLS:
        slot = slot_of(queue)
        source = cluster.node_of(slot)
        target = next(node for node in cluster.primaries if node is not source)
        with cluster.moving(slot, to=target) as move:
            move.move_keys(count=1)


def add_a_node(cluster: Cluster) -> None:
    cluster.add_node()
    cluster.balance()


def replace_primaries(cluster: Cluster) -> None:
    """As planned: their clients wait in blocking commands."""
    for primary in list(cluster.primaries):
        [replica] = cluster.replicas_of(primary)
        replica.call("CLUSTER", "FAILOVER")
        cluster.wait_for_failover(of=primary)
    cluster.wait_until_ok()


def kill_a_primary(cluster: Cluster) -> None:
    # It comes back as a replica: without one, the new primary cannot have anything confirmed.
    replace_by_harm(cluster, POOLS[0], cluster.kill, cluster.start)


def pause_a_primary(cluster: Cluster) -> None:
    """It comes back, and still takes itself for one."""
    replace_by_harm(cluster, POOLS[1], cluster.pause, cluster.resume)


def cut_off_a_primary(cluster: Cluster) -> None:
    """From the other nodes. It serves its clients until it finds that it is in a minority."""
    replace_by_harm(cluster, POOLS[0], cluster.cut_off, cluster.reunite)


def partition_a_primary(cluster: Cluster) -> None:
    """From nodes and clients."""
    replace_by_harm(cluster, POOLS[1], partial(cluster.cut_off, clients=True), cluster.reunite)


def replace_by_harm(
    cluster: Cluster, queue: str, harm: Callable[[Node], object], end: Callable[[Node], object]
) -> None:
    """Harm the primary of *queue* until another node has taken its place."""
    node = cluster.node_of(slot_of(queue))
    harm(node)
    cluster.wait_for_failover(of=node)
    end(node)
    cluster.wait_until_ok()


def stop_all(cluster: Cluster) -> None:
    cluster.stop_all()
    time.sleep(OUTAGE)
    cluster.start_all()
    cluster.wait_until_ok()


CHANGES: dict[str, Callable[[Cluster], None]] = {
    "slots were moved": move_slots,
    "a node was added": add_a_node,
}
FAILURES: dict[str, Callable[[Cluster], None]] = {
    "primaries were replaced": replace_primaries,
    "a primary was killed": kill_a_primary,
    "a primary was paused": pause_a_primary,
    "all servers were down": stop_all,
}
if PROXIES:
    FAILURES |= {
        "a primary was cut off": cut_off_a_primary,
        "a primary was partitioned": partition_a_primary,
    }


@pytest.mark.parametrize(("replicas", "harms"), [(0, CHANGES), (1, FAILURES)], ids=["changes", "failures"])
def test_all_go_on_by_themselves(
    tmp_path: Path, replicas: int, harms: dict[str, Callable[[Cluster], None]]
) -> None:
    options = {"confirm_replicas": replicas}
    with (
        Cluster(
            primaries=3, replicas=replicas, appendonly=bool(replicas), proxied=bool(replicas) and PROXIES
        ) as cluster,
        Installation(cluster, tmp_path, broker_transport_options=options) as site,
    ):
        workers = [
            site.start_worker(scheme=SCHEME, pool=pool, queues=[pool], expected=EXPECTED) for pool in POOLS
        ]
        for worker in workers:
            worker.wait_ready()
        with Load(site.producer(SCHEME), POOLS) as load:
            wait_all_work(site, load, POOLS, SOON, "at first")
            for when, harm in harms.items():
                harm(cluster)
                wait_all_work(site, load, POOLS, SOON, f"after {when}")
        site.wait_ended(load.accepted)
        assert site.ledger.early() == []
        if not replicas:
            assert site.ledger.run_twice() == {}, "nothing is lost when a slot moves, not even an ack"
        assert all(worker.running for worker in workers)
        assert cluster.errors()["CROSSSLOT"] == 0
