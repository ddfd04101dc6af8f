"""Sentry: an error is one event, in the trace of the producer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.neighbours.extensions.shop import Shop
from tests.neighbours.tracing.collector import Collector
from tools.harness.process import wait_until

MORE = """

@app.task(bind=True, max_retries=1)
def fail(self):
    try:
        raise ValueError("in a worker")
    except ValueError as error:
        raise self.retry(exc=error, countdown=1)


@app.task(acks_late=True)
def reject():
    from celery.exceptions import Reject

    raise Reject(requeue=True)
"""


@pytest.fixture(autouse=True)
def more(shop: Shop) -> None:
    with (shop.folder / "sentry_shop.py").open("a") as file:
        file.write(MORE)


def publish(shop: Shop, call: str) -> None:
    shop.python(
        "from kombu_redisdelay import batch\n"
        "from sentry_shop import *\n"
        "with sentry_sdk.start_transaction(name='request'):\n"
        f"    {call}\n"
        "sentry_sdk.flush()"
    )


def trace(content: Any) -> str:
    found: str = content["contexts"]["trace"]["trace_id"]
    return found


def transactions(collector: Collector, name: str) -> list[Any]:
    return [each for each in collector.of("transaction") if each["transaction"] == name]


@pytest.mark.parametrize(
    "call",
    [
        "remind.delay('Ada')",
        "remind.apply_async(['Ada'], countdown=2)",
        "with batch(app): remind.apply_async(['Ada'], countdown=2)",
    ],
)
def test_one_trace(shop: Shop, collector: Collector, call: str) -> None:
    shop.worker("sentry_shop")
    publish(shop, call)
    wait_until(lambda: transactions(collector, "sentry_shop.remind"), 20, "the task")
    [request], [task] = (transactions(collector, name) for name in ("request", "sentry_shop.remind"))
    assert trace(request) == trace(task)
    [data] = [span["data"] for span in task["spans"] if span["op"] == "queue.process"]
    assert data["messaging.system"] == "redis"
    assert data["messaging.destination.name"] == "celery"
    # How late it was, in ms, whatever its countdown.
    assert 0 <= data["messaging.message.receive.latency"] < 1500


def test_an_error_is_one_event(shop: Shop, collector: Collector) -> None:
    shop.worker("sentry_shop", pool="prefork")
    publish(shop, "fail.apply_async(countdown=1)")
    publish(shop, "remind.apply_async(['Ada'], countdown=4)")
    wait_until(lambda: transactions(collector, "sentry_shop.remind"), 20, "a later task")
    [event] = collector.of("event")
    assert event["exception"]["values"][-1]["value"] == "in a worker"
    assert trace(event) == trace(transactions(collector, "request")[0])
    assert len(transactions(collector, "sentry_shop.fail")) == 2


def test_check_ins_of_beat(shop: Shop, collector: Collector) -> None:
    shop.worker("sentry_shop")
    shop.beat("sentry_shop")
    wait_until(lambda: len(collector.of("check_in")) == 2, 90, "the beginning and the end")
    begun, ended = collector.of("check_in")
    assert (begun["status"], ended["status"]) == ("in_progress", "ok")
    assert begun["check_in_id"] == ended["check_in_id"]
    assert begun["monitor_slug"] == ended["monitor_slug"] == "each minute"


@pytest.mark.parametrize(("module", "events"), [("sentry_shop", 1), ("sentry_quiet_shop", 0)])
def test_a_dead_letter_is_an_event(shop: Shop, collector: Collector, module: str, events: int) -> None:
    worker = shop.worker(module)
    publish(shop, "reject.delay()")
    wait_until(lambda: "are now dead letters" in worker.log(), 30, "the dead letter")
    publish(shop, "remind.delay('Ada')")
    wait_until(lambda: transactions(collector, "sentry_shop.remind"), 20, "a later task")
    found = [each for each in collector.of("event") if each["logger"].startswith("kombu_redisdelay")]
    assert len(found) == events
