"""OpenTelemetry: a task is one trace from its producer to its worker, however it gets there."""

from __future__ import annotations

import pytest

from kombu_redisdelay import Messages, Selection
from tests.neighbours.extensions.shop import Shop, printed
from tests.neighbours.tracing.collector import Collector
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until

DELIVERY_LIMIT = 3

MORE = """
app.conf.broker_transport_options = {"delivery_limit": 3}


@app.task
def remind_later(customer):
    remind.apply_async([customer], countdown=1)


@app.task(bind=True)
def retry_once(self):
    if not self.request.retries:
        raise self.retry(countdown=1)


@app.task(acks_late=True)
def wait(seconds):
    import time
    time.sleep(seconds)


@app.task(acks_late=True)
def reject():
    from celery.exceptions import Reject
    raise Reject(requeue=True)
"""


@pytest.fixture
def module(shop: Shop) -> str:
    with (shop.folder / "otel_shop.py").open("a") as file:
        file.write(MORE)
    return "otel_shop"


def start_worker(shop: Shop, app: str, *, pool: str = "solo", delay_ms: int = 200) -> CeleryWorker:
    """A worker that sends its spans each *delay_ms*, and not each five seconds."""
    return shop.worker(app, pool=pool, OTEL_BSP_SCHEDULE_DELAY=str(delay_ms))


def publish(shop: Shop, calls: str, module: str = "otel_shop") -> None:
    """Make *calls*, all in one span."""
    code = [
        "from opentelemetry import trace",
        "from kombu_redisdelay import batch",
        f"from {module} import app",
        "from otel_shop import *",
        "start_tracing()",
        "with trace.get_tracer('test').start_as_current_span('request'):",
        *(f"    {line}" for line in calls.split("\n")),
        "send_last_spans()",
    ]
    shop.python("\n".join(code))


def lineage(collector: Collector, name: str) -> list[list[str]]:
    """For each span of this *name*: the names of those that it comes from, the oldest first."""
    by_id = {span.id: span for span in collector.spans}
    found = []
    for span in collector.named(name):
        names = [span.name]
        while span.parent:
            parent = by_id[span.parent]
            assert parent.trace == span.trace
            span = parent
            names.insert(0, span.name)
        found.append([each.replace("otel_shop.", "") for each in names])
    return found


@pytest.mark.parametrize("pool", ["prefork", "solo"])
@pytest.mark.parametrize(
    "call",
    [
        "remind.delay('Ada')",
        "remind.apply_async(['Ada'], countdown=1)",
        "with batch(app): remind.apply_async(['Ada'], countdown=1)",
    ],
)
def test_one_trace(shop: Shop, collector: Collector, call: str, pool: str) -> None:
    start_worker(shop, "otel_shop", pool=pool)
    publish(shop, call)
    wait_until(lambda: collector.named("run/otel_shop.remind"), 20, "the span of the worker")
    assert lineage(collector, "run/otel_shop.remind") == [["request", "apply_async/remind", "run/remind"]]
    [span] = collector.named("run/otel_shop.remind")
    assert span.attributes["messaging.destination"] == "celery"
    assert ("celery.eta" in span.attributes) == ("countdown" in call)


def test_what_a_task_publishes(shop: Shop, collector: Collector, module: str) -> None:
    start_worker(shop, module)
    publish(shop, "remind_later.delay('Ada')")
    wait_until(lambda: collector.named("run/otel_shop.remind"), 20, "the second task")
    names = ["request", "apply_async/remind_later", "run/remind_later", "apply_async/remind", "run/remind"]
    assert lineage(collector, "run/otel_shop.remind") == [names]


def test_a_retry(shop: Shop, collector: Collector, module: str) -> None:
    start_worker(shop, module)
    publish(shop, "retry_once.delay()")
    wait_until(lambda: len(collector.named("run/otel_shop.retry_once")) == 2, 20, "both runs")
    once = ["apply_async/retry_once", "run/retry_once"]
    found = sorted(lineage(collector, "run/otel_shop.retry_once"), key=len)
    assert found == [["request", *once], ["request", *once, *once]]


def test_a_worker_that_stops_sends_its_last_spans(shop: Shop, collector: Collector) -> None:
    worker = start_worker(shop, "otel_shop", pool="prefork", delay_ms=600_000)
    publish(shop, "remind.delay('Ada')")
    wait_until(lambda: printed(worker, "reminded Ada"), 20, "the task")
    worker.stop()
    assert len(collector.named("run/otel_shop.remind")) == 1


def test_a_worker_that_is_killed(shop: Shop, collector: Collector, module: str) -> None:
    worker = start_worker(shop, module)
    publish(shop, "wait.delay(2)")
    wait_until(lambda: "otel_shop.wait" in worker.log().partition(" ready.")[2], 20, "that it runs")
    worker.kill()
    start_worker(shop, module)
    wait_until(lambda: collector.named("run/otel_shop.wait"), 60, "the span of the other worker")
    assert lineage(collector, "run/otel_shop.wait") == [["request", "apply_async/wait", "run/wait"]]
    [span] = collector.named("run/otel_shop.wait")
    assert "'redelivered': True" in span.attributes["celery.delivery_info"]


def test_what_is_delivered_by_hand(shop: Shop, collector: Collector) -> None:
    start_worker(shop, "otel_shop")
    publish(shop, "remind.apply_async(['Ada'], countdown=600)")
    with Messages(f"redisdelay://{shop.address}/0") as delayed:
        [message] = delayed.select(Selection(state="scheduled"))
        assert delayed.deliver_now(ids=[message.id]).count == 1
    wait_until(lambda: collector.named("run/otel_shop.remind"), 20, "the span of the worker")
    assert lineage(collector, "run/otel_shop.remind") == [["request", "apply_async/remind", "run/remind"]]


def test_a_dead_letter_that_is_requeued(shop: Shop, collector: Collector, module: str) -> None:
    worker = start_worker(shop, module)
    publish(shop, "reject.delay()")
    wait_until(lambda: "are now dead letters" in worker.log(), 30, "the dead letter")
    # Each delivery up to the limit was a run.
    wait_until(lambda: len(collector.named("run/otel_shop.reject")) == DELIVERY_LIMIT, 20, "their spans")
    with Messages(f"redisdelay://{shop.address}/0") as dead:
        [letter] = dead.select(Selection(state="dead"))
        assert dead.requeue(ids=[letter.id]).count == 1
    wait_until(lambda: len(collector.named("run/otel_shop.reject")) > DELIVERY_LIMIT, 20, "another run")
    for each in lineage(collector, "run/otel_shop.reject"):
        assert each == ["request", "apply_async/reject", "run/reject"]


def test_redis_makes_no_noise(shop: Shop, collector: Collector) -> None:
    worker = start_worker(shop, "otel_redis_shop")
    # What it does when it starts has been sent, because its heartbeats come later.
    wait_until(lambda: len(collector.named("PUBLISH")) >= 3, 20, "heartbeats")
    before = len(collector.spans)
    publish(shop, "for n in range(20): remind.apply_async(['Ada'], countdown=n % 2)", "otel_redis_shop")
    wait_until(lambda: len(collector.named("run/otel_shop.remind")) == 20, 20, "all")
    assert len(printed(worker, "reminded Ada")) == 20
    names = {span.name for span in collector.spans[before:]}
    assert names == {"request", "apply_async/otel_shop.remind", "run/otel_shop.remind"} | names & {"PUBLISH"}


def test_redis_is_seen_where_tasks_connect(shop: Shop, collector: Collector, module: str) -> None:
    """That there is no noise does not come from spans that are missing."""
    start_worker(shop, "otel_redis_shop")
    publish(shop, "remind_later.delay('Ada')")
    wait_until(lambda: collector.named("run/otel_shop.remind"), 20, "the second task")
    assert collector.named("PING")
