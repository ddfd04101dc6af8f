"""The recipes for messages that come back later."""

from __future__ import annotations

import importlib
from threading import Thread
from typing import Any

import pytest
from kombu import pools
from kombu.connection import Connection

from kombu_redisdelay import Messages, Selection
from tests.end_to_end.installation import ROOT, Installation
from tools.harness.process import wait_until


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_celery_task(site: Installation, pool: str) -> None:
    pools.reset()
    producer = site.producer()
    options = {"broker_transport_options": {"delivery_limit": 3}}
    site.worker(
        app="tests.end_to_end.failing_recipe",
        pool=pool,
        concurrency=2,
        settings=options,
        expected="Traceback|the bank is closed|reached the delivery limit",
    )
    for order in (2, 9):
        producer.send_task("examples.requeue_celery.charge", [order], countdown=0.1)
    site.wait_ended(["2"])
    with Messages(producer) as dead:
        wait_until(
            lambda: dead.count(Selection(state="dead", queue="celery")) == 1, 20, "order 9 is a dead letter"
        )
        [letter] = dead.select(Selection(state="dead", queue="celery"))
        assert letter.failures == 3
    tries = site.ledger.entries("started") + site.ledger.entries("ended")
    for label in ("2", "9"):
        mine = [entry for entry in tries if entry.task == label]
        assert [entry.deliveries for entry in mine] == [0, 1, 2]
        assert mine[1].at - mine[0].at >= 0.5
        assert mine[2].at - mine[1].at >= 1.0
    wait_until(lambda: site.unacked() == 0, 30, "all settled")
    assert (site.ready(), site.scheduled()) == (0, 0)


def test_a_consumer_without_celery(site: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    recipe: Any = importlib.import_module("examples.requeue_kombu")
    handled: list[str] = []

    class Stop(BaseException):
        pass

    def handle(body: str) -> None:
        handled.append(body)
        if body == "stop":
            raise Stop
        if body == "bad" or len(handled) == 1:
            raise ValueError(body)

    def consume() -> None:
        with pytest.raises(Stop):
            recipe.consume(site.server.url())

    monkeypatch.setattr(recipe, "handle", handle)
    monkeypatch.setattr(recipe, "DELAYS", (0.1, 0.2, 0.3))
    thread = Thread(target=consume)
    thread.start()
    with Connection(site.server.url()) as connection, Messages(connection) as dead:
        queue = connection.SimpleQueue("orders")
        queue.put("good")
        wait_until(lambda: handled == ["good", "good"], 20, "the second try")
        queue.put("bad")
        wait_until(lambda: dead.count(Selection(state="dead", queue="orders")) == 1, 20, "a dead letter")
        assert handled == ["good", "good", *["bad"] * 4]
        queue.put("stop")
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_a_task_gives_up_for_an_error_of_its_own_stays_away(site: Installation, pool: str) -> None:
    site.worker(pool=pool, expected="Reject|reject requeue|Cannot allocate memory|Traceback")
    site.producer().send_task("give_up", ["once"])
    site.wait_started("once")
    wait_until(lambda: (site.ready(), site.unacked(), site.scheduled()) == (0, 0, 0), 30, "that it is gone")
    assert [entry.task for entry in site.ledger.entries("started")] == ["once"]
