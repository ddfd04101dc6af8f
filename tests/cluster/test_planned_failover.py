"""``CLUSTER FAILOVER``: a replica takes over from a primary that is well, as for an update of the servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from kombu.connection import Connection

from tests.transport.kit import Inbox, drain, event_loop, publish, turn, waits
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until

QUEUE = "q"


def replace_primary(cluster: Cluster) -> None:
    old = cluster.node_of("{" + QUEUE + "}")
    [replica] = cluster.replicas_of(old)
    replica.call("CLUSTER", "FAILOVER")
    roles = ("slave", "master")
    wait_until(
        lambda: tuple(node.info("replication")["role"] for node in (old, replica)) == roles,
        30,
        "the replica takes over",
    )


@pytest.mark.parametrize("how", ["drain_events", "event loop"])
def test_a_channel_that_waits_goes_on(how: str) -> None:
    with (
        Cluster(primaries=3, replicas=1) as cluster,
        Connection(cluster.url()) as connection,
        Connection(cluster.url()) as another,
    ):
        channel = connection.channel()
        inbox = Inbox(channel)
        wait: Callable[[Callable[[], object]], None] = partial(drain, connection)
        if how == "event loop":
            wait = partial(turn, event_loop(connection))
        wait(lambda: waits(channel))
        replace_primary(cluster)
        publish(another.channel(), "after")
        wait(lambda: inbox.bodies == ["after"])
        inbox.messages[0].ack()
