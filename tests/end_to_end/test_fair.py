"""Fair queues with real workers: switched on and off under load, and beside those of ``redis://``."""

from __future__ import annotations

import time
from collections import Counter
from itertools import count, cycle
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from kombu_redisdelay import Queues
from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.process import wait_until

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

OURS, STOCK = "redisdelay", "redis"
#: One sends more than the others, and one nothing but what has no key.
TENANTS = ("noisy", "noisy", "noisy", "a", "b", "")
PAUSE = 0.005
#: Of what is left of a queue that was fair, its limits.
FAIR_KEYS = ("fair", "turns:*", "[0-9:]*", "limited", "active", "unacked-keys", "earlier", "tats", "alarms")


class Load:
    """Publishes from a thread for as long as the ``with`` block lasts, through our transport and kombu's in
    turn, with keys.

    Attributes:
        tasks: what was published, in order.
    """

    def __init__(self, site: Installation) -> None:
        self.tasks: list[str] = []
        self._producers = [site.producer(OURS), site.producer(STOCK)]
        self._is_over = Event()
        self._thread = Thread(target=self._run, name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        for number, producer in zip(count(), cycle(self._producers), strict=False):
            if self._is_over.wait(PAUSE):
                return
            tenant = TENANTS[number % len(TENANTS)]
            label = f"{tenant} {number}"
            producer.send_task(
                ("work", "work_late")[number % 2],
                [label],
                headers={"x-key": tenant} if tenant else {},
                countdown=None if number % 5 else 0.2,
            )
            self.tasks.append(label)


@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.thorough)])
def test_switched_on_and_off_under_load(site: Installation, times: int) -> None:
    for pool in ("threads", "prefork"):
        site.start_worker(pool=pool, concurrency=2, prefetch_multiplier=4)
    with Queues(site.producer()) as queues, Load(site) as load:
        # Limits count when the queue is fair again.
        queues.limit_keys(QUEUE, concurrency=3)

        def go_on(number: int) -> None:
            """Wait until some more have ended."""
            wanted = len(set(site.ledger.ended())) + number
            wait_until(lambda: len(set(site.ledger.ended())) >= wanted, 60, "nothing goes on")

        go_on(1)
        for number in range(times):
            queues.make_fair(QUEUE)
            go_on(number % 5)
            queues.make_plain(QUEUE)
            # The next time, some of it is still being moved back.
            go_on(number % 3 * 2)
    site.wait_ended(load.tasks, 60)
    assert site.ledger.run_twice() == {}
    wait_until(lambda: not queues_left(site), 30, "what is fair is left")
    assert (site.ready(), site.scheduled(), site.unacked()) == (0, 0, 0)


def queues_left(site: Installation) -> list[bytes]:
    """What there is of a fair queue."""
    patterns = [f"redisdelay:{{{QUEUE}}}:{name}" for name in FAIR_KEYS]
    return [key for pattern in patterns for key in site.redis.execute_command("KEYS", pattern)]


def test_what_a_stock_producer_pushes_is_sorted_by_key(site: Installation) -> None:
    stock = site.producer(STOCK)
    with Queues(site.producer()) as queues:
        queues.make_fair(QUEUE)
    for tenant, number in [*(("noisy", n) for n in range(30)), *(("quiet", n) for n in range(3))]:
        stock.send_task("work_late", [f"{tenant} {number}"], headers={"x-key": tenant})
    site.worker(prefetch_multiplier=1)
    tasks = [*(f"noisy {n}" for n in range(30)), *(f"quiet {n}" for n in range(3))]
    site.wait_ended(tasks)
    ended = site.ledger.ended()
    assert max(ended.index(f"quiet {number}") for number in range(3)) < 10
    assert Counter(ended) == Counter(tasks)


def test_a_stock_worker_beside_takes_some_and_nothing_is_lost(site: Installation) -> None:
    producers = {scheme: site.producer(scheme) for scheme in (OURS, STOCK)}
    workers = {scheme: site.worker(scheme=scheme) for scheme in producers}
    tasks: list[str] = []

    def publish() -> None:
        for scheme, producer in producers.items():
            label = f"{scheme} {len(tasks)}"
            headers = {"x-key": f"tenant {len(tasks) % 3}"}
            producer.send_task(
                "work", [label, 0.005], headers=headers, countdown=(None, None, 0.3)[len(tasks) % 3]
            )
            tasks.append(label)

    def have_both_worked() -> bool:
        pids = {entry.pid for entry in site.ledger.entries("ended")[before:]}
        return pids == {worker.pid for worker in workers.values()}

    with Queues(site.producer()) as queues:
        queues.make_fair(QUEUE)
        before = len(site.ledger.ended())
        deadline = time.monotonic() + 60
        while not (len(tasks) >= 200 and have_both_worked()):
            assert time.monotonic() < deadline, "one of the workers gets nothing"
            publish()
        # What is moved back is for both of them.
        queues.make_plain(QUEUE)
        for _ in range(50):
            publish()
    site.wait_ended(tasks)
    assert Counter(site.ledger.started()) == Counter(tasks)
    wait_until(lambda: not queues_left(site), 30, "what is fair is left")
