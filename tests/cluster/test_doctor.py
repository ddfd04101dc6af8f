"""What the doctor says of a cluster that lacks a server."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from kombu.connection import Connection

from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor import examine
from tests.transport.kit import publish
from tools.harness import trouble
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until


def found(cluster: Cluster, queues: Sequence[str] = (), **options: Any) -> dict[str, tuple[str, str]]:
    """Level and finding of each check, by the server if it is about one."""
    with Connection(cluster.url(), transport_options=options) as connection, Access(connection) as access:
        return {
            f"{one.check} of {one.server}" if one.server else one.check: (one.level.value, one.found)
            for one in examine(access, queues)
        }


def test_without_a_replica_and_without_a_server() -> None:
    with Cluster(primaries=3, replicas=1, full_coverage=False, node_timeout=60_000) as cluster:
        node = cluster.node_of("{q}")
        names = map("q{}".format, count())
        elsewhere = next(name for name in names if cluster.node_of(f"{{{name}}}") is not node)
        with Connection(cluster.url()) as connection:
            for queue in ("q", elsewhere):
                publish(connection.channel(), "a", queue=queue, headers={"x-delay": 60_000})
        [replica] = cluster.replicas_of(node)
        assert found(cluster, confirm_replicas=1)[f"confirm_replicas of {node}"][0] == "ok"
        cluster.kill(replica)
        wait_until(lambda: node.info("replication")["connected_slaves"] == 0, 30, "the replica is gone")
        findings = found(cluster, confirm_replicas=1)
        others = [one for one in cluster.primaries if one is not node]
        assert findings[f"role of {node}"] == ("ok", "primary, 0 replicas")
        assert findings[f"confirm_replicas of {node}"][0] == "wrong"
        assert [findings[f"confirm_replicas of {one}"][0] for one in others] == ["ok", "ok"]
        assert findings["queue q"] == ("warning", "1 message scheduled, and no worker")
        text = "none: if this server dies, no other one can take over"
        # Those of the others are in order.
        assert [name for name in findings if name.startswith("replicas of ")] == [f"replicas of {node}"]
        assert findings[f"replicas of {node}"] == ("warning", text)

        cluster.kill(node)
        findings = found(cluster, ["q"])
        level, text = findings[f"connection of {node}"]
        assert (level, text.partition(":")[0]) == ("wrong", "it does not answer")
        assert [findings[f"role of {one}"] for one in others] == [("ok", "primary, 1 replica")] * 2
        assert findings["permissions"][0] == "ok"
        assert findings["queues"] == (
            "wrong",
            "1 could not be checked, because no server of the cluster serves them now: q",
        )
        # What is elsewhere is looked at all the same.
        findings = found(cluster, ["q", elsewhere])
        assert findings[f"queue {elsewhere}"] == ("warning", "1 message scheduled, and no worker")
        assert findings["queues"][0] == "wrong"


def test_a_server_that_refuses_is_one_finding_and_the_others_are_looked_at() -> None:
    with Cluster(primaries=3, node_timeout=60_000) as cluster:
        busy, *others = cluster.primaries
        with trouble.busy(busy):
            findings = found(cluster)
        level, text = findings[f"connection of {busy}"]
        assert (level, text.partition(":")[0]) == ("wrong", "it refuses")
        assert [findings[f"role of {one}"] for one in others] == [("ok", "primary, 0 replicas")] * 2
        assert findings["permissions"][0] == "ok"
