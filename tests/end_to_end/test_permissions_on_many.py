"""The user of docs/permissions.rst, on each server of a cluster, and on those that sentinels watch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.end_to_end.installation import Installation
from tests.end_to_end.test_permissions import run
from tests.permissions import allow, documented_rules, refused, rules_on_a_cluster
from tools.harness.celery_worker import STOP_PATIENCE
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer
from tools.harness.sentinel import MASTER, PASSWORD, SentinelSite

QUEUES = ("celery", "other")


@contextmanager
def a_cluster(directory: Path) -> Iterator[tuple[Installation, str, Sequence[RedisServer]]]:
    with Cluster(primaries=3, replicas=1) as cluster, Installation(cluster, directory) as site:
        for node in cluster.nodes:
            allow(node, *rules_on_a_cluster(*QUEUES), "+wait")
        yield site, cluster.url(username="shop", password="secret"), cluster.nodes


@contextmanager
def sentinels(directory: Path) -> Iterator[tuple[Installation, str, Sequence[RedisServer]]]:
    with (
        SentinelSite(replicas=1) as watched,
        Installation(watched, directory, broker_transport_options={"master_name": MASTER}) as site,
    ):
        for server in watched.servers:
            allow(server, *documented_rules(*QUEUES), "+wait")
        yield site, watched.url().replace(f"//:{PASSWORD}@", "//shop:secret@"), watched.servers


@pytest.mark.parametrize("kind", [a_cluster, sentinels])
def test_a_worker_and_the_command_line(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path) as (site, url, servers):
        options = {"master_name": MASTER, "confirm_replicas": 1, "dead_letter": True, "delivery_limit": 2}
        if kind is a_cluster:
            del options["master_name"]
        settings = {"broker_transport_options": options, "task_send_sent_event": True}
        app = Celery("shop", broker=url, set_as_current=False)
        app.conf.update(settings)
        arguments: dict[str, Any] = {"url": url, "settings": settings, "args": ("-E",)}
        worker = site.worker(
            **arguments,
            pool="prefork",
            queues=QUEUES,
            expected=r"Traceback|reached the delivery limit",
        )
        heard: list[dict[str, Any]] = []
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": heard.append})
            for number, _ in enumerate(receiver.itercapture(timeout=20)):
                if not number:
                    # It listens by now: a heartbeat of the worker came.
                    app.send_task("work", ["now"])
                    app.send_task("work_late", ["later"], countdown=1, queue="other", priority=6)
                    app.send_task("reject", ["rejected"])
                if sum(event["type"] == "task-succeeded" for event in heard) == 2:
                    break
        site.wait_ended(["now", "later"])
        [reply] = app.control.ping(timeout=10, limit=1)
        assert worker.name in str(reply)
        assert "work" in str(app.control.inspect(timeout=10, limit=1).registered())
        wait_until(lambda: "reject" in run(app, "list", "--state", "dead"), 20, "the dead letter")
        ids = [app.send_task("work", [str(n)], countdown=3600).id for n in range(4)]
        for words in (
            ("stats",),
            ("list",),
            ("list", "--state", "unacked"),
            ("show", ids[0]),
            ("timeline",),
            ("cancel", ids[0]),
            ("reschedule", ids[1], "--countdown", "7200"),
            ("deliver-now", ids[2]),
            ("cancel", "--all", "--yes"),
            ("requeue", "--state", "failed", "--all", "--yes"),
            ("requeue", "--state", "dead", "--all", "--yes"),
            ("remove", "--state", "failed", "--all", "--yes"),
            ("remove", "--state", "dead", "--all", "--yes"),
        ):
            run(app, *words)
        os.kill(worker.pid, signal.SIGTERM)
        wait_until(lambda: not worker.running, STOP_PATIENCE, "that it stops")
        assert [refused(server) for server in servers] == [[] for _ in servers]
        assert "permissions: all commands, keys and channels are allowed" in run(app, "doctor")
        app.close()
