"""What has to come out of Celery's pools."""

from __future__ import annotations

from statistics import median

from tools.benchmarks.goals.goal import Goal
from tools.benchmarks.peers import REDIS
from tools.benchmarks.quotients import Figure, among, largest, measured, quotient
from tools.benchmarks.workloads import WORKLOADS, kills, pools


def _pools() -> list[Goal]:
    def ratios(figure: str) -> list[Figure]:
        return [
            quotient(
                measured("pools", case.name, figure), measured("pools", case.name, f"{figure}, {REDIS.name}")
            )
            for case in WORKLOADS["pools"].cases
        ]

    return [
        Goal(
            f"pools, tasks a second : {REDIS.name}, the worst of {len(ratios('rate'))}",
            among(min, *ratios("rate")),
            at_least=0.95,
        ),
        Goal(
            f"pools, tasks a second : {REDIS.name}, the one in the middle",
            among(median, *ratios("rate")),
            at_least=1.5,
        ),
        Goal(f"pools, lone task, p50 : {REDIS.name}, the worst", largest(*ratios("p50")), at_most=1.3),
        *(
            Goal(
                f"pools, a limit of {pools.LIMIT}, {case.name} : {pools.LIMIT} slots",
                measured("pools-limited", case.name, "share"),
                at_least=0.8,
            )
            for case in WORKLOADS["pools-limited"].cases
        ),
        *(
            Goal(
                f"20 kills, {case.name}, early acks, begun twice",
                measured("kills", case.name, "begun twice"),
                at_most=0 if case.name.split()[0] != "prefork" else None,
                unit="tasks",
            )
            for case in kills.WORKLOAD.cases
        ),
    ]


GOALS = [*_pools()]
