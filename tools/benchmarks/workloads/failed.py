"""What it costs to keep failed tasks: two Celery workers in turn, of which one keeps them."""

from __future__ import annotations

from tools.benchmarks.in_turn import UNITS, compare
from tools.benchmarks.peers import OURS
from tools.benchmarks.site import Site
from tools.benchmarks.workload import Case, Measured, Sizes, Workload

POOLS = ("threads", "prefork")

#: One task of so many fails; 0: none.
SHARES = {0: "none fails", 100: "1 % fail", 1: "all fail"}


def name(pool: str, late: int, share: int) -> str:
    """Of a case."""
    return f"{pool}, {'late' if late else 'early'}, {SHARES[share]}"


def measure(site: Site, sizes: Sizes) -> Measured:
    share, count = sizes["share"], sizes["tasks"]
    tasks: list[tuple[str, tuple[object, ...]]] = [
        ("fail" if share and not number % share else "no_op", ()) for number in range(count)
    ]
    figures = compare(
        *(site, POOLS[sizes["pool"]], tasks, sizes["turns"]),
        not_kept={"keep_failed": None},
        kept={},
        task_acks_late=bool(sizes["late"]),
    )
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
    units=UNITS,
    measure=measure,
    sizes={"turns": 8},
    quick_sizes=None,
    rounds=5,
)
