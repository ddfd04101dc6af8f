"""What one server of a cluster lacks or loses must not count for the others, nor be hidden by them."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
from kombu.connection import Connection
from redis import ConnectionPool

from kombu_redisdelay import NotReplicatedError
from kombu_redisdelay.broker.keys import redis_keys
from kombu_redisdelay.broker.lease import Lease
from kombu_redisdelay.broker.lease_policy import LeasePolicy
from kombu_redisdelay.broker.mover import Mover
from kombu_redisdelay.broker.server.cluster import ClusterServer
from kombu_redisdelay.broker.server.nodes import PARSER, Address, Nodes
from kombu_redisdelay.broker.store import Store
from tests.transport.kit import publish
from tools.harness.cluster import Cluster
from tools.harness.cluster_node import Node
from tools.harness.cluster_view import slot_of
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy
from tools.harness.redis_server import HOST

QUEUE = "emails"
LEASE_MS = 900


@pytest.fixture(scope="module")
def replicated() -> Iterator[Cluster]:
    with Cluster(primaries=3, replicas=1) as cluster:
        yield cluster


def without_replica(cluster: Cluster, node: Node) -> None:
    for replica in cluster.replicas_of(node):
        cluster.kill(replica)
    wait_until(lambda: node.info("replication")["connected_slaves"] == 0, 30, "the replica is gone")


def test_too_few_replicas_cost_no_connection(replicated: Cluster) -> None:
    """A failover that leaves no replica makes each publish to that server an error. The others go on."""
    queues = [
        next(name for n in range(100) if replicated.node_of("{" + (name := f"q{n}") + "}") is node)
        for node in replicated.primaries
    ]
    with Connection(replicated.url(), transport_options={"confirm_replicas": 2}) as connection:
        channel = connection.channel()

        def publish_everywhere() -> list[Any]:
            for queue in queues:
                with pytest.raises(NotReplicatedError):
                    publish(channel, "m", queue=queue)
            cluster = channel.store.server
            return [cluster.server_of("{" + queue + "}").line.connection._sock for queue in queues]

        sockets = publish_everywhere()
        assert None not in sockets
        assert publish_everywhere() == sockets


def test_the_server_that_has_the_message_must_have_a_replica(replicated: Cluster) -> None:
    """While a slot moves, and after that: whatever the server has that was asked first."""
    slot = slot_of(QUEUE)
    source = replicated.node_of(slot)
    target, third = (node for node in replicated.primaries if node is not source)
    with Connection(replicated.url(), transport_options={"confirm_replicas": 1}) as connection:
        channel = connection.channel()
        publish(channel, "to all servers", queue="other")
        without_replica(replicated, target)
        with replicated.moving(slot, to=target), pytest.raises(NotReplicatedError):
            # The queue is empty, so the source sends it on.
            publish(channel, "sent on", queue=QUEUE)
        channel = connection.clone().channel()
        with pytest.raises(NotReplicatedError):
            publish(channel, "learns where the slot is", queue=QUEUE)
        with replicated.moving(slot, to=third):
            pass
        # The server that has refused it has no replica, and does not count.
        publish(channel, "follows", queue=QUEUE)


def test_a_lease_is_renewed_beside_a_server_that_is_gone() -> None:
    with Cluster(primaries=3, full_coverage=False) as cluster:
        lost, alive = (
            next(name for number in range(100) if cluster.node_of("{" + (name := f"q{number}") + "}") is node)
            for node in cluster.primaries[:2]
        )
        addresses = [Address(HOST, node.port) for node in cluster.primaries]
        pool = ConnectionPool(host=HOST, port=addresses[0].port)
        server = ClusterServer(Nodes(addresses, pool), pool, 1)
        apart = server.with_own_connections(socket_timeout=1)
        lease = Lease(apart, "me", LeasePolicy(LEASE_MS), Mover(Store(apart, "", (0,), ":")))
        keys = redis_keys("", alive, ":", True)
        # The one that is gone comes first.
        lease.cover(redis_keys("", lost, ":", True))
        lease.cover(keys)
        node = cluster.node_of("{" + alive + "}")

        def ends_at() -> float:
            return float(node.call("ZSCORE", keys.consumers, "me") or 0)

        wait_until(ends_at, 20, "the lease begins")
        cluster.kill(cluster.node_of("{" + lost + "}"))
        before = ends_at()
        wait_until(lambda: ends_at() > before + 3 * LEASE_MS, 30, "the lease is renewed")
        lease.stop(server)


def test_silent_servers_are_not_waited_for(shared_cluster: Cluster) -> None:
    """redis-py asks one after the other, and the first ones are silent."""
    node = shared_cluster.primaries[0]
    with Proxy(node.port) as proxy, Proxy(node.port) as another:
        silent = (proxy, another)
        for each in silent:
            each.go_silent()
        addresses = [Address(HOST, each.port) for each in (*silent, node)]
        pool = ConnectionPool(socket_timeout=5, socket_connect_timeout=5, **PARSER)
        for _ in range(5):
            nodes = Nodes(addresses, pool)
            began = monotonic()
            assert len(nodes.primaries()) == len(shared_cluster.primaries)
            nodes.find_out()
            assert monotonic() - began < 4
            nodes.close()
