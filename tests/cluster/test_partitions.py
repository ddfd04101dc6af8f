"""From one partition to eight and back, under load, by deploying workers and producers in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.end_to_end.installation import Installation
from tests.sentinel.load import Load
from tools.harness.celery_worker import CeleryWorker
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until

QUEUE = "emails"
SCHEME = "redisdelay-cluster"
EIGHT: dict[str, Any] = {"partitions": {QUEUE: 8}}
OTHERS = [f"{QUEUE}#{number}" for number in range(1, 8)]


def test_there_and_back(tmp_path: Path) -> None:
    with Cluster(primaries=3) as cluster, Installation(cluster, tmp_path) as site:

        def deploy(options: dict[str, Any], before: CeleryWorker | None = None) -> CeleryWorker:
            worker = site.start_worker(
                scheme=SCHEME, pool="threads", queues=[QUEUE], settings={"broker_transport_options": options}
            )
            worker.wait_ready()
            if before is not None:
                before.stop()
            return worker

        def publish(options: dict[str, Any], while_doing: Any = None) -> Any:
            producer = site.producer(SCHEME, broker_transport_options=options)
            with Load(producer, [QUEUE]) as load:
                done = while_doing and while_doing()
                wait_until(lambda: len(load.accepted) >= 100, 30, "publishing")
            accepted.extend(f"{label}" for label in load.accepted)
            return done

        def is_empty() -> bool:
            return not any(site.ready(name) + site.scheduled(name) + site.unacked(name) for name in OTHERS)

        accepted: list[str] = []
        before = deploy({})
        worker = publish({}, lambda: deploy(EIGHT, before))
        publish(EIGHT, lambda: wait_until(lambda: not is_empty(), 30, "messages in the partitions"))
        publish({}, lambda: wait_until(is_empty, 30, "the partitions are empty"))
        publish({}, lambda: deploy({}, worker))
        wait_until(lambda: len(site.ledger.ended()) >= len(accepted), 20, "all tasks end")
        assert sorted(site.ledger.ended()) == sorted(accepted), "each once"
        assert site.ledger.early() == []
