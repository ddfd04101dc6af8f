"""A Celery worker runs no-op tasks, with and without a line that is kept of each: in turn, and as often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psutil

from tools.benchmarks.celery_site import PATIENCE, open_site
from tools.benchmarks.peers import OURS
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload

POOLS = ("threads", "prefork")

#: Name -> transport options.
KINDS: dict[str, dict[str, Any]] = {"plain": {}, "kept": {"keep_finished": {}}}

#: Each is measured twice in a round, so that neither always comes first.
ORDER = ("plain", "kept", "kept", "plain")


def measure(site: Site, sizes: Sizes) -> Measured:
    pool = POOLS[sizes["pool"]]
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number, kind in enumerate(ORDER):
        place = replace(site, queue=f"{site.queue}-{number}")
        rate, cost = _run(place, sizes, pool, KINDS[kind])
        rates[kind].append(rate)
        costs[kind].append(cost)
    figures = {f"{kind} rate": sum(rates[kind]) / 2 for kind in KINDS}
    figures |= {f"{kind} CPU": sum(costs[kind]) / 2 for kind in KINDS}
    figures["rate, of plain"] = figures["kept rate"] / figures["plain rate"]
    figures["CPU, of plain"] = figures["kept CPU"] / figures["plain CPU"]
    return Measured(figures)


def _run(site: Site, sizes: Sizes, pool: str, options: dict[str, Any]) -> tuple[float, float]:
    """Tasks in a second, and microseconds of CPU that the worker uses for a task."""
    count = sizes["tasks"]
    with open_site(site) as celery:
        celery.send(*[("no_op", ())] * sizes["warm"], ("mark", ("begin",)))
        with celery.worker(pool, broker_transport_options=options) as worker:
            celery.postbox.wait("begin", PATIENCE)
            before = _cpu_seconds(worker.pid)
            celery.send(("mark", ("begin",)), *[("no_op", ())] * count, ("mark", ("end",)))
            began = celery.postbox.wait("begin", PATIENCE)
            ended = celery.postbox.wait("end", PATIENCE)
            spent = _cpu_seconds(worker.pid) - before
    return (count + 1) / (ended - began), spent / (count + 2) * 1e6


def _cpu_seconds(pid: int) -> float:
    """What a worker has used, with its processes."""
    worker = psutil.Process(pid)
    times = [each.cpu_times() for each in (worker, *worker.children(recursive=True))]
    return sum(each.user + each.system for each in times)


WORKLOAD = Workload(
    name="finished",
    about="a Celery worker runs no-op tasks, and keeps a line of each that has ended, or none",
    cases=tuple(Case(pool, OURS, {"pool": number}) for number, pool in enumerate(POOLS)),
    units={
        **{f"{kind} rate": "tasks/s" for kind in KINDS},
        **{f"{kind} CPU": "us" for kind in KINDS},
        "rate, of plain": "",
        "CPU, of plain": "",
    },
    measure=measure,
    sizes={"warm": 200, "tasks": 8000},
    quick_sizes=None,
    rounds=3,
)
