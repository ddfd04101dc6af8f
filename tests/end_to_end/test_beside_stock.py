"""Workers and producers of kombu's own ``redis://`` on the same queue, and the way back to them."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

from kombu_redisdelay.operations.adoption import Adopted, Adoption
from kombu_redisdelay.operations.transfer import InUse
from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.process import wait_until

OURS, STOCK = "redisdelay", "redis"


def test_both_kinds_of_producers_and_workers_share_a_queue(site: Installation) -> None:
    tasks = []
    producers = {scheme: site.producer(scheme) for scheme in (OURS, STOCK)}
    # Some are there before the workers, and some come while they are at work.
    for number in range(50):
        for scheme, producer in producers.items():
            tasks.append(f"{scheme} {number}")
            producer.send_task("work", [tasks[-1], 0.005])
    workers = {scheme: site.start_worker(scheme=scheme) for scheme in (OURS, STOCK)}
    for worker in workers.values():
        worker.wait_ready()
    for number in range(50, 150):
        for scheme, producer in producers.items():
            tasks.append(f"{scheme} {number}")
            producer.send_task("work", [tasks[-1], 0.005])

    site.wait_ended(tasks)
    assert Counter(site.ledger.started()) == Counter(tasks)
    by_worker = Counter(entry.pid for entry in site.ledger.entries("ended"))
    assert set(by_worker) == {worker.pid for worker in workers.values()}


def test_a_rollback_loses_nothing_that_is_ready(site: Installation) -> None:
    ours = site.producer(OURS)
    worker = site.worker(scheme=OURS)
    ours.send_task("work", ["before"])
    site.wait_ended(["before"])
    worker.stop()
    tasks = [f"ready {number}" for number in range(20)]
    for number, task in enumerate(tasks):
        ours.send_task("work", [task], priority=number % 10)
    # One that was delivered already, and therefore carries a count that kombu does not know.
    with ours.connection_for_read() as connection:
        message = connection.default_channel.basic_get(QUEUE)
        message.reject(requeue=True)
    assert site.ready() == len(tasks)

    site.worker(scheme=STOCK)

    site.wait_ended(tasks)
    assert site.ledger.run_twice() == {}


def test_countdowns_of_stock_producers_wait_in_redis(site: Installation) -> None:
    stock = site.producer(STOCK)
    tasks = [f"task {number}" for number in range(20)]
    # Half of them are on the list before a worker is there.
    for task in tasks[:10]:
        stock.send_task("work", [task], countdown=10)
    site.worker(scheme=OURS)
    for task in tasks[10:]:
        stock.send_task("work", [task], countdown=10)

    wait_until(lambda: site.scheduled() == len(tasks), 20, "all parked")
    assert (site.ready(), site.unacked()) == (0, 0)
    assert site.ledger.started() == []

    site.wait_ended(tasks)
    assert site.ledger.run_twice() == {}
    assert site.ledger.early() == []


def test_what_a_stock_worker_held_in_memory_is_taken_over(site: Installation) -> None:
    stock = site.producer(STOCK)
    worker = site.worker(scheme=STOCK)
    tasks = [f"task {number}" for number in range(10)]
    for task in tasks:
        stock.send_task("work", [task], countdown=12)
    wait_until(lambda: worker.log().count("] received") == len(tasks), 20, "all held by stock")
    worker.stop()
    assert site.ready() == len(tasks)

    site.worker(scheme=OURS)

    wait_until(lambda: site.scheduled() == len(tasks), 20, "all parked")
    site.wait_ended(tasks)
    assert site.ledger.run_twice() == {}
    assert site.ledger.early() == []


def test_what_a_solo_stock_worker_takes_meanwhile_runs_once(site: Installation, tmp_path: Path) -> None:
    """While it runs a task that is not unacked any more, because another worker has restored it after the
    visibility timeout, it looks like a client that has once read there, as Flower does."""
    stock, first, second = site.producer(STOCK), tmp_path / "first", tmp_path / "second"
    site.worker(scheme=STOCK, pool="solo", prefetch_multiplier=1)
    stock.send_task("work", ["first"], {"gate": str(first)})
    site.wait_started("first")
    site.redis.delete("unacked", "unacked_index")
    with Adoption(site.producer(OURS)) as adoption:

        def is_idle() -> bool:
            with suppress(InUse):
                adoption.check_not_in_use()
            return bool(adoption.passed_over)

        wait_until(is_idle, 30, "the worker to be idle")
        stock.send_task("work_late", ["second"], {"gate": str(second)})
        first.touch()
        site.wait_started("second")
        assert site.redis.hlen("unacked") == 1
        assert list(adoption.adopt())[-1] == Adopted()
    assert (site.redis.hlen("unacked"), site.ready()) == (1, 0)
    second.touch()
    site.wait_ended(["first", "second"])
    assert site.ledger.run_twice() == {}
