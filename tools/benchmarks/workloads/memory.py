"""What a waiting countdown task costs: in Redis, and in a Celery worker."""

from __future__ import annotations

import psutil

from tools.benchmarks.celery_site import PATIENCE, open_site
from tools.benchmarks.peers import OURS, REDIS
from tools.benchmarks.redis_info import used_memory
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Measured, Sizes, Workload, cases
from tools.harness.process import wait_until

COUNTDOWN = 3600

#: What the worker has done before it is looked at, so that it does not grow any more by itself.
_WARM = 500


def measure_server(site: Site, sizes: Sizes) -> Measured:
    """Without a worker, stock messages stay ready; the schedule is where ours wait."""
    with open_site(site) as celery, site.redis() as redis:
        celery.send(("no_op", ()), countdown=COUNTDOWN)
        before = used_memory(redis)
        celery.send(*[("no_op", ())] * sizes["tasks"], countdown=COUNTDOWN)
        return Measured({"server": (used_memory(redis) - before) / sizes["tasks"]})


def measure_worker(site: Site, sizes: Sizes) -> Measured:
    tasks = site.scaled(sizes["tasks"])
    with open_site(site) as celery, site.redis() as redis, celery.worker("solo") as worker:

        def wait_until_done() -> None:
            wait_until(lambda: not redis.llen(site.queue), PATIENCE, "the worker takes what it is given")
            celery.send(("mark", ("done",)))
            celery.postbox.wait("done", PATIENCE)

        process = psutil.Process(worker.pid)
        celery.send(*[("no_op", ())] * _WARM)
        wait_until_done()
        before = process.memory_info().rss
        celery.send(*[("no_op", ())] * tasks, countdown=COUNTDOWN)
        wait_until_done()
        return Measured({"worker": (process.memory_info().rss - before) / tasks})


WORKLOADS = [
    Workload(
        name="memory-server",
        about="countdown tasks in Redis: scheduled by ours, ready by kombu's redis",
        cases=cases(OURS, REDIS),
        units={"server": "bytes/task"},
        measure=measure_server,
        sizes={"tasks": 10_000},
        quick_sizes={"tasks": 5_000},
        rounds=1,
    ),
    Workload(
        name="memory-worker",
        about="a Celery worker (solo) while countdown tasks wait",
        cases=cases(OURS, REDIS),
        units={"worker": "bytes/task"},
        measure=measure_worker,
        sizes={"tasks": 4_000},
        quick_sizes=None,
        rounds=1,
    ),
]
