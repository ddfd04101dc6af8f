"""A rolling deploy on a cluster, while slots move."""

from __future__ import annotations

from pathlib import Path

from kombu_redisdelay import Messages, Selection
from tests.cluster.test_workers import EXPECTED, POOLS, SCHEME, move_slots
from tests.end_to_end.installation import Installation
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until

COUNT = 40


def test_it_loses_nothing(tmp_path: Path) -> None:
    partitioned = f"{POOLS[0]}-many"
    queues = [*POOLS, partitioned]
    options = {"partitions": {partitioned: 4}}
    with (
        Cluster(primaries=3) as cluster,
        Installation(cluster, tmp_path, broker_transport_options=options) as site,
    ):
        for pool in POOLS[:2]:
            site.worker(scheme=SCHEME, pool=pool, concurrency=2, queues=queues, expected=EXPECTED)
        producer = site.producer(SCHEME)
        known, newer = [], []
        for number in range(COUNT):
            for queue in queues:
                known.append(f"known {number} in {queue}")
                newer.append(f"newer {number} in {queue}")
                producer.send_task("newer", [newer[-1]], queue=queue)
                producer.send_task("work", [known[-1]], queue=queue)
        site.wait_ended(known)

        def waiting() -> int:
            keys = [key for node in cluster.primaries for key in node.call("KEYS", "*:unknown")]
            return sum(site.redis.zcard(key) for key in keys)

        wait_until(lambda: waiting() == len(newer), 30, "that all newer ones wait")
        for pool in POOLS[2:]:
            site.start_worker(
                scheme=SCHEME,
                pool=pool,
                concurrency=2,
                queues=queues,
                app="tests.end_to_end.newer_app",
                expected=EXPECTED,
            )
        move_slots(cluster)
        site.wait_ended(newer, 60)
        assert site.ledger.run_twice() == {}
        wait_until(lambda: waiting() == 0, 30, "that none waits")
        with Messages(producer) as letters:
            assert letters.count(Selection(state="dead")) == 0
        assert cluster.errors()["CROSSSLOT"] == 0
