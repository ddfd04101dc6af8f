"""A Celery worker runs no-op tasks that wait for it, as fast as it can."""

from __future__ import annotations

from functools import partial

from tools.benchmarks.celery_site import PATIENCE, open_site
from tools.benchmarks.peers import OURS, RABBITMQ, REDIS, REDIS_PLUS
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Measured, Sizes, Workload, cases

POOLS = ("solo", "threads", "prefork")


def measure(site: Site, sizes: Sizes, *, pool: str) -> Measured:
    count = site.scaled(sizes["tasks"])
    with open_site(site) as celery:
        celery.send(
            *[("no_op", ())] * sizes["warm"],
            ("mark", ("begin",)),
            *[("no_op", ())] * count,
            ("mark", ("end",)),
        )
        with celery.worker(pool):
            began = celery.postbox.wait("begin", PATIENCE)
            ended = celery.postbox.wait("end", PATIENCE)
    return Measured({"rate": (count + 1) / (ended - began)})


def _workload(pool: str) -> Workload:
    return Workload(
        name=f"worker-{pool}",
        about=f"a Celery worker with the {pool} pool runs no-op tasks that wait for it",
        cases=cases(OURS, REDIS, REDIS_PLUS, RABBITMQ),
        units={"rate": "tasks/s"},
        measure=partial(measure, pool=pool),
        sizes={"warm": 100, "tasks": 500},
        quick_sizes={"warm": 50, "tasks": 250} if pool == "solo" else None,
        rounds=3,
    )


WORKLOADS = [_workload(pool) for pool in POOLS]
