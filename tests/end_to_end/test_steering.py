"""The recipes of the documentation, and steering tasks that real workers wait for."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from kombu import pools

from kombu_redisdelay import Messages, Selection
from tests.end_to_end.installation import ALONE, ROOT, Installation, suspicious_lines
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer


class TestRecipes:
    @pytest.fixture
    def recipes(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
        monkeypatch.setenv("CELERY_BROKER_URL", server.url())
        monkeypatch.syspath_prepend(ROOT)
        monkeypatch.delitem(sys.modules, "examples.recipes", raising=False)
        module = importlib.import_module("examples.recipes")
        monkeypatch.setattr(module, "TIME_TO_PAY", 1.5)
        monkeypatch.setattr(module, "QUIET_TIME", 1.5)
        yield module
        pools.reset()
        module.app.close()

    @pytest.fixture
    def worker(self, recipes: ModuleType) -> Iterator[CeleryWorker]:
        with CeleryWorker("examples.recipes", pool="solo", args=ALONE, env=os.environ, cwd=ROOT) as worker:
            yield worker
            assert suspicious_lines(worker.log()) == []

    def test_close_an_order_unless_it_is_paid(self, recipes: ModuleType, worker: CeleryWorker) -> None:
        for number in (1, 2, 3):
            recipes.place_order(number)
        assert recipes.pay_order(2)
        wait_until(lambda: "order 3 was not paid" in worker.log(), 20, "order 3 closed")
        assert "order 1 was not paid" in worker.log()
        assert "order 2" not in worker.log()
        assert not recipes.pay_order(1)
        with Messages(recipes.app) as delayed:
            assert delayed.count(Selection(state="scheduled")) == 0

    def test_one_digest_after_the_last_event(self, recipes: ModuleType, worker: CeleryWorker) -> None:
        with Messages(recipes.app) as delayed:
            due: list[Any] = []
            for _ in range(5):
                recipes.on_event("Ada")
                message = delayed.get("digest-Ada")
                assert message is not None
                due.append(message.due)
            assert sorted(set(due)) == due
            recipes.on_event("Bob")
            wait_until(lambda: "all the news for Bob" in worker.log(), 20, "Bob's digest")
            assert worker.log().count("all the news for Ada") == 1
            assert delayed.count(Selection(state="scheduled")) == 0


def test_an_account_is_synchronised_with_its_newest_state(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", server.url())
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.delitem(sys.modules, "examples.account_sync", raising=False)
    example = importlib.import_module("examples.account_sync")
    try:
        outcomes = [example.on_webhook(42, change) for change in ("new", "paid", "packed", "sent")]
        assert outcomes == ["is published"] * 2 + ["replaces the one that waits"] * 2
        assert example.on_webhook(43, "new") == "is published"
        with CeleryWorker(
            "examples.account_sync", pool="solo", args=ALONE, env=os.environ, cwd=ROOT
        ) as worker:
            wait_until(lambda: worker.log().count(" now") == 3, 30, "all are done")
            assert suspicious_lines(worker.log()) == []
            log = worker.log()
        assert log.index("account 42 is new now") < log.index("account 42 is sent now")
        assert "account 43 is new now" in log
        with Messages(example.app) as messages:
            assert messages.count() == 0
    finally:
        pools.reset()
        example.app.close()


def test_quiet_tenants_do_not_wait_for_an_upload_on_a_fair_queue(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"):
        monkeypatch.setenv(variable, server.url())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.delitem(sys.modules, "tenants", raising=False)
    example = importlib.import_module("tenants")
    # All wait behind the whole upload, however fast the machine is.
    monkeypatch.setattr(example, "PAUSE", 0)
    try:
        plain, fair = example.compare(150)
        assert len(plain.waits) == len(fair.waits) == example.QUIET
        assert plain.rows_left == 0 < fair.rows_left
        example.show(150, plain, fair)
        with Messages(example.app) as messages:
            assert messages.count() == 0
    finally:
        pools.reset()
        example.app.close()


@pytest.fixture
def producer(site: Installation) -> Iterator[Celery]:
    # A producer of an earlier test would believe to have noted its queue in Redis.
    pools.reset()
    yield site.producer()
    pools.reset()


class TestSteering:
    @pytest.fixture
    def delayed(self, producer: Celery) -> Iterator[Messages]:
        with Messages(producer) as delayed:
            yield delayed

    def test_a_worker_goes_by_the_new_time(
        self, site: Installation, producer: Celery, delayed: Messages
    ) -> None:
        site.worker(pool="threads", concurrency=2)
        for label in ("cancelled", "earlier", "now", "later"):
            countdown = 5 if label in ("cancelled", "later") else 3600
            producer.send_task("work", [label], task_id=label, countdown=countdown)
        assert delayed.cancel(ids=["cancelled"])
        assert delayed.reschedule(ids=["later"], countdown=7)
        assert delayed.reschedule(ids=["earlier"], countdown=2)
        assert delayed.deliver_now(ids=["now"])
        site.wait_ended(["later"])
        assert site.ledger.started() == ["now", "earlier", "later"]
        assert site.ledger.early() == []

    def test_a_retry_leaves_alone_what_was_scheduled_meanwhile(
        self, site: Installation, producer: Celery, delayed: Messages
    ) -> None:
        def send(label: str, countdown: float) -> None:
            headers = {"x-delay-on-conflict": "replace"}
            producer.send_task("retry_once", [label], task_id="key", countdown=countdown, headers=headers)

        gate = site.directory / "gate"
        site.worker(pool="threads", concurrency=1)
        producer.send_task("work", ["busy"], {"gate": str(gate)})
        site.wait_started("busy")
        send("first", 0.1)
        wait_until(lambda: site.unacked() == 1, 20, "the worker has the first")
        send("second", 3600)
        gate.touch()
        key = Selection(state="scheduled", ids=["key"])
        wait_until(lambda: delayed.count(key) == 2, 20, "the retry of the first")
        retry, second = delayed.select(key)
        assert (retry.args, second.args) == ("('first',)", "['second']")
        assert retry.headers["retries"] == 1
        site.wait_ended(["busy"])
        wait_until(lambda: site.ledger.started().count("first") == 2, 20, "the first again")
        assert list(delayed.select(key)) == [second]
