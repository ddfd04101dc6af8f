"""What it costs to keep a line of each task that has ended: two Celery workers in turn, of which one does."""

from __future__ import annotations

from tools.benchmarks.in_turn import UNITS, compare
from tools.benchmarks.peers import OURS
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload

POOLS = ("threads", "prefork")


def measure(site: Site, sizes: Sizes) -> Measured:
    tasks: list[tuple[str, tuple[object, ...]]] = [("no_op", ())] * sizes["tasks"]
    pool = POOLS[sizes["pool"]]
    return Measured(compare(site, pool, tasks, sizes["turns"], not_kept={}, kept={"keep_finished": {}}))


WORKLOAD = Workload(
    name="finished",
    about="a Celery worker, concurrency 2, that keeps a line of each task that ends, and one that does not",
    cases=[Case(pool, OURS, {"pool": number}) for number, pool in enumerate(POOLS)],
    units=UNITS,
    measure=measure,
    sizes={"tasks": 1000, "turns": 8},
    quick_sizes=None,
    rounds=5,
)
