"""A primary is gone, and its replica takes over: publishing waits for that."""

from __future__ import annotations

from celery import Celery

from tests.faults.workers import wait_closed
from tools.harness.cluster import Cluster


def test_publishing_waits_until_a_replica_has_taken_over() -> None:
    """kombu would try again for less than a second. All bindings are at the server that is gone, too."""
    with Cluster(primaries=3, replicas=1, node_timeout=1000) as cluster:
        app = Celery(broker=cluster.url(), set_as_current=False)
        app.conf.broker_pool_limit = 1
        node = cluster.node_of("{_kombu.binding}")
        queue = next(name for n in range(100) if cluster.node_of("{" + (name := f"q{n}") + "}") is node)
        app.send_task("before", queue=queue)
        [replica] = cluster.replicas_of(node)
        cluster.kill(node)
        wait_closed(node.port)
        app.send_task("at once", queue=queue)
        app.send_task("to a queue that has to be declared", queue=queue + "-new")
        with app.connection_for_write() as connection:
            app.send_task("over a connection that has to be made", queue=queue, connection=connection)
        assert replica.call("LLEN", "{" + queue + "}") == 3
        app.close()
