"""A node of a cluster is full: its queues drain, and the others know nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from kombu_redisdelay import BatchPublishError, batch
from tests.end_to_end.installation import Installation
from tests.end_to_end.test_out_of_memory import REFUSED
from tools.harness.cluster import Cluster
from tools.harness.full import fill
from tools.harness.process import wait_until


def send(producer: Celery, queue: str, *tasks: str, **options: int) -> list[str]:
    return [producer.send_task("work_late", [task], queue=queue, **options).id for task in tasks]


def test_a_node_that_is_full_drains(cluster: Cluster, tmp_path: Path) -> None:
    with Installation(cluster, tmp_path) as site:
        producer = site.producer("redisdelay-cluster", task_publish_retry=False)
        queues = [f"q{number}" for number in range(10)]
        full = cluster.node_of("{q0}")
        others = [queue for queue in queues if cluster.node_of(f"{{{queue}}}") is not full]
        tasks = [f"{queue} {number}" for queue in queues for number in range(3)]
        for task in tasks:
            send(producer, task.split()[0], task, countdown=5 if task.endswith("2") else 0)
        ballast = next(key for key in map(str, range(10**6)) if cluster.node_of(key) is full)
        with full.client() as client:
            fill(client, ballast=ballast)
            try:
                with pytest.raises(OperationalError, match="maxmemory"):
                    send(producer, "q0", "refused")
                with pytest.raises(BatchPublishError) as caught, batch(producer):
                    ids = [*send(producer, "q0", "refused"), *send(producer, others[0], "accepted")]
                assert (caught.value.unpublished, caught.value.published) == (ids[:1], 1)
                worker = site.worker(
                    scheme="redisdelay-cluster", pool="threads", queues=queues, args=(), expected=REFUSED
                )
                site.wait_ended([*tasks, "accepted"])
                wait_until(lambda: not any(map(site.unacked, queues)), 30, "acks")
                assert worker.running
            finally:
                client.config_set("maxmemory", 0)
        assert "refused" not in site.ledger.ended()
