"""celery-batches: a worker that is killed or stopped loses nothing of what it has in its buffer."""

from __future__ import annotations

import pytest

from kombu_redisdelay import Messages, Selection
from tests.neighbours.extensions.shop import Shop, printed
from tools.harness.process import wait_until

COUNTED = r"counted \d+"


def publish(shop: Shop, calls: int, countdown: float = 0) -> None:
    shop.python(
        "from batches_shop import count\n"
        f"for n in range({calls}): count.apply_async([n], countdown={countdown} or None)"
    )


def counted(*logs: list[str]) -> int:
    return sum(int(line.split()[1]) for log in logs for line in log)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_full_batches_and_the_rest(shop: Shop, pool: str) -> None:
    worker = shop.worker("batches_shop", pool=pool)
    with Messages(f"redisdelay://{shop.address}/0") as queues:
        publish(shop, 250)
        wait_until(lambda: counted(printed(worker, COUNTED)) == 250, 20, "all")
        assert "counted 100" in printed(worker, COUNTED)
        wait_until(lambda: queues.count() == 0, 30, "their acks")


def test_what_has_a_countdown_is_counted_when_it_is_due(shop: Shop) -> None:
    worker = shop.worker("batches_shop", pool="threads")
    publish(shop, 3, countdown=2)
    with Messages(f"redisdelay://{shop.address}/0") as queues:
        assert queues.count(Selection(state="scheduled")) == 3
        wait_until(lambda: counted(printed(worker, COUNTED)) == 3, 20, "all")


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_worker_that_ends_with_a_full_buffer(shop: Shop, end: str) -> None:
    patient = shop.folder / "batches_patient.py"
    patient.write_text("from batches_shop import app, count\n\ncount.flush_interval = 3600\n")
    first = shop.worker("batches_patient", pool="prefork")
    with Messages(f"redisdelay://{shop.address}/0") as queues:
        publish(shop, 50)
        wait_until(lambda: queues.count(Selection(state="unacked")) == 50, 30, "that the worker holds all")
        getattr(first, end)()
        assert counted(printed(first, COUNTED)) == 0
        second = shop.worker("batches_shop", pool="prefork")
        wait_until(lambda: counted(printed(second, COUNTED)) == 50, 60, "all")
        wait_until(lambda: queues.count() == 0, 30, "their acks")


def test_a_process_that_is_killed_leaves_its_batch_to_the_worker(shop: Shop) -> None:
    """celery-batches does not notice it. What is pinned here is what the page says of that."""
    (shop.folder / "batches_deadly.py").write_text(
        "import os, signal\n"
        "from batches_shop import Batches, app\n\n\n"
        "@app.task(base=Batches, flush_every=3, acks_late=True)\n"
        "def count(requests):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    worker = shop.worker("batches_deadly", pool="prefork")
    shop.python("from batches_deadly import count\nfor n in range(3): count.delay(n)")
    with Messages(f"redisdelay://{shop.address}/0") as queues:
        wait_until(lambda: "SIGKILL" in worker.log(), 20, "that the pool has noticed")
        assert queues.count(Selection(state="unacked")) == 3
        worker.stop()
        assert queues.count(Selection(state="ready")) == 3
