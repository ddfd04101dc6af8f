"""A message that can never be handled ends in the dead letters, and those beside it do not."""

from __future__ import annotations

import re

import pytest

from kombu_redisdelay.broker.options import ISOLATED_AFTER
from tests.broker.rig import with_count
from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until

#: Where a message says when it is due.
DUE = re.compile(rb'"redisdelay-due": \d+, ')
LIMIT = 4
SETTINGS = {"broker_transport_options": {"delivery_limit": LIMIT}}
SAID = f"reached the delivery limit of {LIMIT} and are now dead letters"


def load(site: Installation, task: str) -> tuple[list[str], bytes]:
    """Publish the poisonous *task*, with innocents around it. Returns these, and its message."""
    innocents = [f"innocent {number}" for number in range(8)]
    producer = site.producer()
    for label in innocents[:2]:
        producer.send_task("work_late", [label])
    producer.send_task(task, ["poison"])
    message = site.redis.execute_command("LINDEX", QUEUE, 0)
    for label in innocents[2:]:
        producer.send_task("work_late", [label])
    return innocents, message


def only_the_poison_died(
    site: Installation, innocents: list[str], message: bytes, tries: int = LIMIT
) -> None:
    deliveries = [entry.deliveries for entry in site.ledger.entries("started") if entry.task == "poison"]
    assert deliveries == [None, *range(1, tries)]
    [letter] = site.dead()
    why, body = letter.split(b"\n", 1)
    _, count, step, reason = why.decode().split(" ", 3)
    assert (count, step, reason) == (str(tries), "0", f"delivery limit of {LIMIT} reached")
    # From when on it may be delivered has changed with each wait.
    assert DUE.sub(b"", body) == DUE.sub(b"", message)
    assert set(site.ledger.ended()) == set(innocents)
    assert (site.ready(), site.scheduled(), site.unacked()) == (0, 0, 0)


def says_so_once(worker: CeleryWorker) -> None:
    # When Redis has already done it.
    wait_until(lambda: SAID in worker.log(), 30, "that it says so")
    assert worker.log().count(SAID) == 1


@pytest.mark.parametrize(("pool", "concurrency"), [("solo", 1), ("prefork", 2)])
def test_a_task_that_kills_its_worker(site: Installation, pool: str, concurrency: int) -> None:
    innocents, message = load(site, "kill_worker")

    def is_over() -> bool:
        return set(innocents) <= set(site.ledger.ended()) and not site.ready() and not site.unacked()

    # The first ones are not known to be its fault.
    deaths = LIMIT + ISOLATED_AFTER
    for _ in range(deaths):
        worker = site.start_worker(
            pool=pool, concurrency=concurrency, settings=SETTINGS, prefetch_multiplier=4, expected=SAID
        )
        wait_until(lambda worker=worker: not worker.running, 20, "death of the worker")  # type: ignore[misc]
    worker = site.worker(
        pool=pool, concurrency=concurrency, settings=SETTINGS, prefetch_multiplier=4, expected=SAID
    )
    wait_until(is_over, 20, "the end of everything")
    only_the_poison_died(site, innocents, message, deaths)
    assert any(entry.redelivered for entry in site.ledger.entries("ended")), "nobody was beside it"
    assert worker.running
    says_so_once(worker)


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_task_that_is_rejected_for_ever(site: Installation, pool: str) -> None:
    innocents, message = load(site, "reject")
    # Celery shows the exception.
    worker = site.worker(pool=pool, settings=SETTINGS, expected=f"{SAID}|Traceback")
    site.wait_ended(innocents)
    wait_until(lambda: bool(site.dead()), 30, "the dead letter")
    wait_until(lambda: not site.unacked(), 30, "acks")
    only_the_poison_died(site, innocents, message)
    tries = [entry.at for entry in site.ledger.entries("started") if entry.task == "poison"]
    assert tries[2] - tries[1] >= 1
    assert tries[3] - tries[2] >= 2
    assert site.ledger.run_twice() == {"poison": LIMIT}
    says_so_once(worker)


def test_a_task_that_kills_its_pool_process_stalls_nobody(site: Installation) -> None:
    innocents, message = load(site, "kill_process")
    worker = site.worker(
        pool="prefork", concurrency=2, settings=SETTINGS, expected=f"{SAID}|WorkerLostError|SIGKILL|Traceback"
    )
    wait_until(site.scheduled, 60, "that it waits")
    site.producer().send_task("work_late", ["beside"])
    site.wait_ended(["beside"])
    wait_until(lambda: bool(site.dead()), 60, "the dead letter")
    site.wait_ended(innocents)
    wait_until(lambda: not site.unacked(), 30, "acks")
    only_the_poison_died(site, [*innocents, "beside"], message)
    assert "Isolated" not in worker.log(), "it is known which one it is"
    says_so_once(worker)


def test_a_suspect_does_not_wait_for_an_idle_worker(site: Installation) -> None:
    """Under a steady backlog no worker is ever idle."""
    producer = site.producer()
    producer.send_task("work_late", ["suspect"])
    message = site.redis.execute_command("RPOP", QUEUE).decode()
    backlog = [f"task {number}" for number in range(400)]
    for label in backlog[:20]:
        producer.send_task("work_late", [label], kwargs={"seconds": 0.05})
    site.redis.execute_command("LPUSH", QUEUE, with_count(message, 3, lost=3))
    for label in backlog[20:]:
        producer.send_task("work_late", [label], kwargs={"seconds": 0.05})
    site.worker(pool="prefork", concurrency=2, prefetch_multiplier=4)
    site.wait_started("suspect")
    assert site.ready() > 100, "the backlog is still there"
    [suspect] = [entry for entry in site.ledger.entries("started") if entry.task == "suspect"]
    site.wait_ended(["suspect", *backlog[:40]])
    ended = {entry.task: entry.at for entry in site.ledger.entries("ended")}
    started = {entry.task: entry.at for entry in site.ledger.entries("started")}
    beside = [
        task
        for task in set(started) & set(ended) - {"suspect"}
        if started[task] < ended["suspect"] and ended[task] > suspect.at
    ]
    assert beside == [], "it ran alone"
