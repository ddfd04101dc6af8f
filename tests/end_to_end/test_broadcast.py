"""A broadcast, from a process that only publishes."""

from __future__ import annotations

from collections import Counter

import pytest
from kombu.common import Broadcast

from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_each_worker_gets_it_in_time(site: Installation, pool: str) -> None:
    """Celery does not declare it where it publishes."""
    for _ in range(2):
        site.worker(pool=pool, app="tests.end_to_end.broadcasting_app")
    producer = site.producer(task_queues=[Broadcast("news")])
    # A worker subscribes just after it has said that it is ready: to this, and to remote control.
    wait_until(lambda: len(producer.control.ping(limit=2)) == 2, 30, "that both have subscribed")
    producer.send_task("work", ["now"], queue="news")
    producer.send_task("work", ["later"], queue="news", countdown=1)
    wait_until(lambda: Counter(site.ledger.ended()) == {"now": 2, "later": 2}, 30, "that both have run both")
    assert site.ledger.early() == []
    assert not site.redis.keys("*bcast*")
