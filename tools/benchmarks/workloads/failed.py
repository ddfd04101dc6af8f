"""What it costs to keep failed tasks: two Celery workers in turn, of which one keeps them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import psutil

from tools.benchmarks.celery_site import PATIENCE, CelerySite, open_site
from tools.benchmarks.peers import OURS
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload

POOLS = ("threads", "prefork")

#: One task of so many fails; 0: none.
SHARES = {0: "none fails", 100: "1 % fail", 1: "all fail"}

#: Name -> transport options.
_WORKERS: dict[str, dict[str, Any]] = {"not kept": {"keep_failed": None}, "kept": {}}

#: Those that are kept, to those that are not.
RATE, CPU = "rate, kept : not", "CPU, kept : not"


def name(pool: str, late: int, share: int) -> str:
    """Of a case."""
    return f"{pool}, {'late' if late else 'early'}, {SHARES[share]}"


@dataclass
class _Side:
    """A worker, and what its turns have shown.

    Attributes:
        rates: tasks a second.
        cpu: seconds that it has used in all, for so many *tasks*.
    """

    site: CelerySite
    pid: int
    rates: list[float] = field(default_factory=list)
    cpu: float = 0.0
    tasks: int = 0

    def go(self, tasks: list[tuple[str, tuple[object, ...]]]) -> None:
        """Have the worker run these."""
        before = self._cpu_seconds()
        self.site.send(("mark", ("begin",)), *tasks, ("mark", ("end",)))
        began = self.site.postbox.wait("begin", PATIENCE)
        ended = self.site.postbox.wait("end", PATIENCE)
        self.rates.append((len(tasks) + 1) / (ended - began))
        self.cpu += self._cpu_seconds() - before
        self.tasks += len(tasks) + 1

    def _cpu_seconds(self) -> float:
        worker = psutil.Process(self.pid)
        times = [each.cpu_times() for each in (worker, *worker.children(recursive=True))]
        return sum(each.user + each.system for each in times)


def measure(site: Site, sizes: Sizes) -> Measured:
    share, count = sizes["share"], sizes["tasks"]
    tasks: list[tuple[str, tuple[object, ...]]] = [
        ("fail" if share and not number % share else "no_op", ()) for number in range(count)
    ]
    with ExitStack() as exit_:
        sides = {}
        for kind, options in _WORKERS.items():
            place = replace(site, queue=f"{site.queue}-{kind.replace(' ', '-')}")
            celery = exit_.enter_context(open_site(place))
            worker = exit_.enter_context(
                celery.worker(
                    POOLS[sizes["pool"]],
                    broker_transport_options=options,
                    task_acks_late=bool(sizes["late"]),
                )
            )
            sides[kind] = _Side(celery, worker.pid)
        for side in sides.values():
            side.go(tasks)
            side.rates, side.cpu, side.tasks = [], 0.0, 0
        for turn in range(sizes["turns"]):
            # Neither always comes first.
            for side in [*sides.values()][:: -1 if turn % 2 else 1]:
                side.go(tasks)
    figures = {kind: median(side.rates) for kind, side in sides.items()}
    figures |= {f"{kind}, CPU": side.cpu / side.tasks * 1e6 for kind, side in sides.items()}
    # What slows the machine down for a second slows down two turns that follow each other.
    pairs = zip(sides["kept"].rates, sides["not kept"].rates, strict=True)
    figures[RATE] = median(kept / not_kept for kept, not_kept in pairs)
    figures[CPU] = figures["kept, CPU"] / figures["not kept, CPU"]
    return Measured(figures)


WORKLOAD = Workload(
    name="failed",
    about="a Celery worker, concurrency 2, that keeps failed tasks, in turn with one that keeps none",
    cases=[
        Case(name(pool, late, share), OURS, {"pool": number, "late": late, "share": share, "tasks": count})
        # To fail takes some milliseconds with prefork.
        for share, count in zip(SHARES, (400, 400, 100), strict=True)
        for number, pool in enumerate(POOLS)
        for late in (0, 1)
    ],
    units={
        **dict.fromkeys(_WORKERS, "tasks/s"),
        **dict.fromkeys((f"{kind}, CPU" for kind in _WORKERS), "us/task"),
        RATE: "x",
        CPU: "x",
    },
    measure=measure,
    sizes={"turns": 8},
    quick_sizes=None,
    rounds=5,
)
