"""A rolling deploy while another server becomes the primary."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.installation import Installation
from tests.sentinel.test_workers import DONE_AGAIN, EXPECTED, SCHEME
from tools.harness.process import wait_until
from tools.harness.sentinel import MASTER, SentinelSite, go_on, pause


def test_it_loses_nothing(tmp_path: Path) -> None:
    """Replicas have what is published; what was done with it meanwhile may be done again."""
    options = {"master_name": MASTER, "confirm_replicas": 1, "visibility_timeout": 6}
    with (
        SentinelSite(hasty=True) as sentinels,
        Installation(sentinels, tmp_path, broker_transport_options=options) as site,
    ):
        site.worker(scheme=SCHEME, pool="prefork", concurrency=2, expected=EXPECTED)
        producer = site.producer(SCHEME)
        newer = [f"newer {number}" for number in range(100)]
        for label in newer:
            producer.send_task("newer", [label])
        before = sentinels.primary()
        with before.client() as client:
            wait_until(lambda: client.zcard("redisdelay:{celery}:unknown") > 0, 30, "that some wait")
        pause(before)
        sentinels.wait_failover(before)
        newer_worker = {"app": "tests.end_to_end.newer_app", "expected": EXPECTED}
        site.worker(scheme=SCHEME, pool="gevent", concurrency=2, **newer_worker)
        site.wait_ended(newer, DONE_AGAIN)
        go_on(before)
        sentinels.wait_whole()
