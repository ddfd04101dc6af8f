"""A queue with x-expires that has a living consumer is in use, as with RabbitMQ: nothing in it expires."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from kombu.entity import Queue

from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until

#: Seconds.
EXPIRES = 2
SETTINGS: dict[str, Any] = {"task_queues": [Queue("short", queue_arguments={"x-expires": EXPIRES * 1000})]}


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads", "gevent"])
def test_a_busy_worker_keeps_its_queue(site: Installation, tmp_path: Path, pool: str) -> None:
    gate = tmp_path / "gate"
    worker = site.worker(pool=pool, prefetch_multiplier=1, app="tests.end_to_end.expiring_app")
    producer = site.producer(**SETTINGS)
    producer.send_task("work_late", ["long"], kwargs={"gate": str(gate)}, queue="short")
    site.wait_started("long")
    ready = [f"ready {number}" for number in range(5)]
    scheduled = [f"scheduled {number}" for number in range(5)]
    for label in ready:
        producer.send_task("work_late", [label], queue="short")
    for label in scheduled:
        producer.send_task("work_late", [label], queue="short", countdown=EXPIRES)
    until = time.monotonic() + 3 * EXPIRES
    wait_until(lambda: time.monotonic() > until, 4 * EXPIRES, "more than it would live unused")
    gate.touch()
    site.wait_ended(["long", *ready, *scheduled])
    assert site.ledger.run_twice() == {}
    wait_until(lambda: site.unacked("short") == 0, 20, "acks")
    worker.stop()
    # Nobody uses it any more.
    wait_until(lambda: not site.redis.keys("redisdelay:{short}:*"), 3 * EXPIRES, "that it is gone")


def test_what_a_killed_worker_held_expires_with_its_queue(site: Installation, tmp_path: Path) -> None:
    settings = {"broker_transport_options": {"visibility_timeout": 1}}
    worker = site.worker(settings=settings, app="tests.end_to_end.expiring_app")
    producer = site.producer(**SETTINGS)
    producer.send_task("work_late", ["long"], kwargs={"gate": str(tmp_path / "never")}, queue="short")
    site.wait_started("long")
    worker.kill()
    assert site.unacked("short") == 1
    wait_until(lambda: not site.redis.keys("redisdelay:{short}:*"), 30, "that it is gone")
