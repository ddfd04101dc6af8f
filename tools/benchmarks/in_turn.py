"""Two Celery workers that differ in one transport option, and run the same tasks in turn."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import psutil

from tools.benchmarks.celery_site import PATIENCE, CelerySite, open_site
from tools.benchmarks.site import Site

#: The kind of worker with the option, to the one without it.
RATE, CPU = "rate, kept : not", "CPU, kept : not"
NOT_KEPT, KEPT = "not kept", "kept"

UNITS = {
    **dict.fromkeys((NOT_KEPT, KEPT), "tasks/s"),
    **dict.fromkeys((f"{NOT_KEPT}, CPU", f"{KEPT}, CPU"), "us/task"),
    RATE: "x",
    CPU: "x",
}


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


def compare(
    site: Site,
    pool: str,
    tasks: list[tuple[str, tuple[object, ...]]],
    turns: int,
    *,
    not_kept: dict[str, Any],
    kept: dict[str, Any],
    **settings: Any,
) -> dict[str, float]:
    """What two workers have shown that ran *tasks* so many *turns*, after one that does not count.

    Arguments:
        not_kept: transport options of one worker.
        kept: of the other.
        settings: of both, for Celery.
    """
    with ExitStack() as exit_:
        sides = {}
        for kind, options in ((NOT_KEPT, not_kept), (KEPT, kept)):
            place = replace(site, queue=f"{site.queue}-{kind.replace(' ', '-')}")
            celery = exit_.enter_context(open_site(place))
            worker = exit_.enter_context(celery.worker(pool, broker_transport_options=options, **settings))
            sides[kind] = _Side(celery, worker.pid)
        for side in sides.values():
            side.go(tasks)
            side.rates, side.cpu, side.tasks = [], 0.0, 0
        for turn in range(turns):
            # Neither always comes first.
            for side in [*sides.values()][:: -1 if turn % 2 else 1]:
                side.go(tasks)
    figures = {kind: median(side.rates) for kind, side in sides.items()}
    figures |= {f"{kind}, CPU": side.cpu / side.tasks * 1e6 for kind, side in sides.items()}
    # What slows the machine down for a second slows down two turns that follow each other.
    pairs = zip(sides[KEPT].rates, sides[NOT_KEPT].rates, strict=True)
    figures[RATE] = median(kept / other for kept, other in pairs)
    figures[CPU] = figures[f"{KEPT}, CPU"] / figures[f"{NOT_KEPT}, CPU"]
    return figures
