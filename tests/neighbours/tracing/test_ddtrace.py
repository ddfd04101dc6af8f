"""ddtrace: tasks run under ``ddtrace-run``, and a task is one trace if it is told so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.neighbours.extensions.shop import Shop
from tests.neighbours.tracing.collector import Collector
from tools.harness.celery_worker import CeleryWorker
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until

APPLY, RUN = "celery.apply dd_shop.remind", "celery.run dd_shop.remind"


class DdtraceRun(CeleryWorker):
    def command(self) -> Sequence[str]:
        return ["ddtrace-run", *super().command()]


@pytest.fixture
def shop(shop: Shop) -> Shop:
    # As on the page.
    shop.environment.update(DD_CELERY_DISTRIBUTED_TRACING="true", DD_TRACE_REDIS_ENABLED="false")
    return shop


@pytest.fixture
def worker(shop: Shop) -> Iterator[CeleryWorker]:
    with DdtraceRun("dd_shop", env=shop.environment, cwd=shop.folder) as worker:
        yield worker


def publish(shop: Shop, call: str, module: str = "dd_shop") -> None:
    code = (
        "from kombu_redisdelay import batch\n"
        f"from {module} import app\n"
        "from dd_shop import remind\n"
        "from ddtrace.trace import tracer\n"
        f"{call}\n"
        "tracer.shutdown()"
    )
    shop.run("ddtrace-run", "python", "-c", code)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    "call",
    [
        "remind.delay('Ada')",
        "remind.apply_async(['Ada'], countdown=1)",
        "with batch(app): remind.apply_async(['Ada'], countdown=1)",
    ],
)
def test_one_trace(shop: Shop, collector: Collector, call: str) -> None:
    publish(shop, call)
    wait_until(lambda: collector.named(RUN), 30, "the span of the worker")
    [published], [ran] = collector.named(APPLY), collector.named(RUN)
    assert (ran.trace, ran.parent) == (published.trace, published.id)
    assert collector.named("redis.command PING") == []


@pytest.mark.parametrize("as_list", [True, False], ids=["list", "string"])
def test_addresses_of_a_cluster(
    shop: Shop, collector: Collector, cluster: Cluster, tmp_path: Path, as_list: bool
) -> None:
    url = cluster.url()
    urls = repr(url.split(";")) if as_list else repr(url)
    (shop.folder / "dd_cluster.py").write_text(f"from dd_shop import app\n\napp.conf.broker_url = {urls}\n")
    publish(shop, "remind.delay('Ada')", "dd_cluster")
    wait_until(lambda: collector.named(APPLY), 30, "the span")
    [span] = collector.named(APPLY)
    assert ("out.host" in span.attributes) == as_list
