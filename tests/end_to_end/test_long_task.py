"""A task may take longer than ``visibility_timeout``: a lease lasts as long as its worker lives."""

from __future__ import annotations

import time
from pathlib import Path

from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until

VISIBILITY_TIMEOUT = 2
POOLS = ("solo", "prefork", "gevent", "eventlet")


def test_a_task_longer_than_the_visibility_timeout_runs_once(site: Installation, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    settings = {"broker_transport_options": {"visibility_timeout": VISIBILITY_TIMEOUT}}
    producer = site.producer()
    for pool in POOLS:
        site.start_worker(pool=pool, queues=[pool], settings=settings, prefetch_multiplier=1)
        producer.send_task("block_late", [pool, str(gate)], queue=pool)
    site.wait_started(*POOLS)
    all_started = time.monotonic()

    site.worker(queues=POOLS, settings=settings)
    # The others may have one message each, so that only this worker can run more of them, and would
    # run those that came back.
    more = [f"{pool} too" for pool in POOLS]
    for pool, task in zip(POOLS, more, strict=True):
        producer.send_task("work", [task], queue=pool)
    site.wait_ended(more)
    wait_until(lambda: time.monotonic() > all_started + 3 * VISIBILITY_TIMEOUT, 30, "a long time")
    assert not set(POOLS) & set(site.ledger.ended())
    gate.touch()
    site.wait_ended(POOLS)
    wait_until(lambda: not any(map(site.unacked, POOLS)), 20, "acks")
    assert not any(map(site.ready, POOLS))
    assert site.ledger.run_twice() == {}
