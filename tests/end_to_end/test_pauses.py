"""A worker waits until there is room for several messages, but no place of its pool is idle meanwhile."""

from __future__ import annotations

import pytest

from tests.end_to_end.installation import Installation

#: Seconds that a task takes -> how many there are.
TASKS = {0.001: 300, 0.01: 100, 0.1: 20}


@pytest.mark.parametrize("pool", ["threads", "prefork"])
@pytest.mark.parametrize("task", ["work", "work_late"])
def test_no_place_is_idle(site: Installation, pool: str, task: str) -> None:
    producer = site.producer()
    labels = [f"{seconds} {number}" for seconds, count in TASKS.items() for number in range(count)]
    for label in labels:
        producer.send_task(task, [label, float(label.split()[0])])
    worker = site.worker(app="tests.end_to_end.pausing_app", pool=pool, concurrency=2)
    site.wait_ended(labels, 60)
    worker.stop()
    assert "waited True, idle places 0" in worker.log()
