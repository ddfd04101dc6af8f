"""What has to come out of failed and finished tasks."""

from __future__ import annotations

from statistics import median

from tools.benchmarks.goals.goal import Goal
from tools.benchmarks.in_turn import CPU, RATE
from tools.benchmarks.peers import OURS
from tools.benchmarks.quotients import Figure, among, largest, measured
from tools.benchmarks.workloads import failed, failed_held, finished


def _failed() -> list[Goal]:
    def each(share: int, figure: str) -> list[Figure]:
        return [
            measured("failed", failed.name(pool, late, share), figure)
            for pool in failed.POOLS
            for late in (0, 1)
        ]

    def middle(share: int, figure: str) -> Figure:
        return among(median, *each(share, figure))

    def held(figure: str) -> Figure:
        return measured("failed-held", OURS.name, figure)

    return [
        *(
            Goal(
                f"failed kept : not, {failed.SHARES[share]}, tasks a second",
                middle(share, RATE),
                at_least=least,
            )
            for share, least in ((0, 0.97), (100, 0.97), (1, 0.75))
        ),
        *(
            Goal(
                f"failed kept : not, {failed.SHARES[share]}, CPU of the worker a task",
                middle(share, CPU),
                at_most=most,
            )
            for share, most in ((0, 1.03), (100, 1.03), (1, 1.33))
        ),
        Goal("a million failed, a page", held(failed_held.PAGE), at_most=5, unit="ms"),
        Goal("a million failed, by task and error", held(failed_held.GROUPS), at_most=10, unit="ms"),
        Goal("memory of a failed task, of a million", held(failed_held.BYTES), at_most=2500, unit="bytes"),
        Goal(
            "a million failed, longest script",
            largest(*map(held, failed_held.LONGEST.values())),
            at_most=5,
            unit="ms",
        ),
    ]


def _finished() -> list[Goal]:
    return [
        Goal(f"finished kept : not, {pool}, tasks a second", measured("finished", pool, RATE), at_least=0.85)
        for pool in finished.POOLS
    ]


GOALS = [*_failed(), *_finished()]
