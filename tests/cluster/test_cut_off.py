"""A server that is cut off from its cluster, and not from its clients: it answers, and tells of slots that
it had."""

from __future__ import annotations

from functools import partial

from kombu.connection import Connection

from tests.transport.kit import Inbox, drain, publish
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until


def test_it_is_not_asked_again_and_again() -> None:
    # What is left of one cluster, and all of the one that has gone on without it.
    with Cluster(primaries=3, node_timeout=500) as was, Cluster(primaries=3) as now:
        queue = next(name for n in range(100) if was.node_of("{" + (name := f"q{n}") + "}") is was.nodes[0])
        for node in was.nodes[1:]:
            was.kill(node)
        left = was.nodes[0]
        wait_until(lambda: b"cluster_state:fail" in left.call("CLUSTER", "INFO"), 30, "it knows that it is")
        nodes = [left, *now.nodes]
        url = ";".join(f"redisdelay-cluster://{node.address}" for node in nodes)
        for _ in range(5):
            with Connection(url) as connection:
                channel = connection.channel()
                inbox = Inbox(channel, queue)
                publish(channel, "a", queue=queue)
                drain(connection, partial(len, inbox))
                inbox.messages[0].ack()
