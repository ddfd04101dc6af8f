"""How long a task of a ``redis://`` producer waits for an idle worker, and what it costs to notice it."""

from __future__ import annotations

import random
from time import monotonic, sleep

import psutil
from celery import Celery

from tools.benchmarks.celery_site import PATIENCE, open_site
from tools.benchmarks.peers import OURS, REDIS
from tools.benchmarks.redis_info import cpu_seconds
from tools.benchmarks.results import percentile
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload


def measure(site: Site, sizes: Sizes) -> Measured:
    chance = random.Random(4)
    url = f"{REDIS.scheme}://127.0.0.1:{site.redis_port}/{site.database}"
    others = [f"{site.queue}-{number}" for number in range(1, sizes["queues"])]
    with (
        Celery("producer", broker=url, set_as_current=False) as producer,
        open_site(site) as celery,
        celery.worker("threads", queues=[site.queue, *others]) as worker,
        site.redis() as redis,
    ):

        def wait() -> float:
            """For one task."""
            sleep(chance.uniform(0.5, 1.5) * sizes["every ms"] / 1000)
            sent = monotonic()
            producer.send_task("mark", ["ran"], queue=site.queue)
            ran: float = celery.postbox.wait("ran", PATIENCE)
            return (ran - sent) * 1000

        for _ in range(sizes["warm"]):
            wait()
        process = psutil.Process(worker.pid)
        redis_before, worker_before, began = cpu_seconds(redis), used_by(process), monotonic()
        waited = [wait() for _ in range(sizes["tasks"])]
        seconds = monotonic() - began
        return Measured(
            {
                "p50": percentile(waited, 50),
                "p95": percentile(waited, 95),
                "worker CPU": (used_by(process) - worker_before) / seconds * 100,
                "server CPU": (cpu_seconds(redis) - redis_before) / seconds * 100,
            },
            waited,
        )


def used_by(process: psutil.Process) -> float:
    """Seconds of CPU time."""
    times = process.cpu_times()
    return float(times.user + times.system)


WORKLOAD = Workload(
    name="foreign",
    about="tasks of a redis:// producer, one every so often, for an idle Celery worker (threads)",
    cases=[
        Case(f"{peer.name}, every {ms / 1000:g} s, {queues} queue{'s' if queues > 1 else ''}", peer, sizes)
        for peer in (OURS, REDIS)
        for ms, queues in ((1000, 1), (2000, 1), (1000, 40))
        for sizes in [{"every ms": ms, "queues": queues}]
    ],
    units={"p50": "ms", "p95": "ms", "worker CPU": "% of a core", "server CPU": "% of a core"},
    measure=measure,
    sizes={"warm": 5, "tasks": 30},
    quick_sizes=None,
    rounds=1,
)
