"""What has to come out of unique keys."""

from __future__ import annotations

from tools.benchmarks.goals.goal import Goal
from tools.benchmarks.peers import OURS
from tools.benchmarks.quotients import Figure, largest, measured, quotient
from tools.benchmarks.workloads import unique, unique_held


def _unique() -> list[Goal]:
    def to_plain(what: str, how: str) -> Figure:
        return quotient(
            measured("unique", OURS.name, f"{what}, {how}"),
            measured("unique", OURS.name, f"{what}, {unique.PLAIN}"),
        )

    consume = dict(zip(unique.MODES, (0.95, 0.85, 0.85), strict=True))
    return [
        *(
            Goal(f"publish with a key, {how} : without", to_plain("publish", how), at_least=0.82)
            for how in unique.MODES
        ),
        Goal("apply_async with a key : without", to_plain("apply_async", "with a key"), at_least=0.9),
        *(
            Goal(f"consume + ack with a key, {how} : without", to_plain("consume", how), at_least=least)
            for how, least in consume.items()
        ),
        Goal("memory of a key", measured("unique", OURS.name, "bytes of a key"), at_most=200, unit="bytes"),
        Goal(
            "memory of a key of 64 bytes, of a million",
            measured("unique-held", OURS.name, unique_held.BYTES),
            at_most=200,
            unit="bytes",
        ),
        Goal(
            "a million keys, longest script",
            largest(*(measured("unique-held", OURS.name, figure) for figure in unique_held.LONGEST.values())),
            at_most=5,
            unit="ms",
        ),
    ]


GOALS = [*_unique()]
