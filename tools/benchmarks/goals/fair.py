"""What has to come out of fair queues."""

from __future__ import annotations

from tools.benchmarks.goals.goal import Goal
from tools.benchmarks.peers import OURS
from tools.benchmarks.quotients import Figure, measured, quotient
from tools.benchmarks.workloads import fair, fair_fleet


def _fair() -> list[Goal]:
    def to(what: str, case: str, other: str) -> Figure:
        return quotient(
            measured("fair", OURS.name, f"{what}, {case}"), measured("fair", OURS.name, f"{what}, {other}")
        )

    plain, thousand, many = (f"prefetch 16, {name}" for name in (fair.PLAIN, "1,000 keys", fair.MANY))
    return [
        Goal("consume + ack, 1 key : plain", to("consume", "prefetch 16, 1 key", plain), at_least=0.9),
        Goal("consume + ack, 1,000 keys : plain", to("consume", thousand, plain), at_least=0.85),
        *(
            Goal(
                f"CPU of Redis, 1,000 keys, prefetch {prefetch} : plain",
                to("CPU", f"prefetch {prefetch}, 1,000 keys", f"prefetch {prefetch}, {fair.PLAIN}"),
                at_most=1.5,
            )
            for prefetch in fair.PREFETCHES
        ),
        *(
            Goal(
                f"publish {how}, 1,000 keys : plain",
                to(f"publish {how}", "1,000 keys", fair.PLAIN),
                at_most={"alone": 1.7, "in a batch": 2.5}[how],
            )
            for how in fair.PUBLISHED
        ),
        Goal("100,000 keys : 1,000, rate", to("consume", many, thousand), at_least=0.75),
        Goal("100,000 keys : 1,000, CPU", to("CPU", many, thousand), at_most=1.5),
        Goal("10,000 keys one at a time : plain, rate", to("consume", "one at a time", plain), at_least=0.5),
        Goal("10,000 keys one at a time : plain, CPU", to("CPU", "one at a time", plain), at_most=3),
        Goal("shares of weights", measured("fair", OURS.name, "error of shares"), at_most=1, unit="%"),
        Goal("longest script", measured("fair", OURS.name, "longest script"), at_most=5, unit="ms"),
        Goal("memory, 20 a key : plain", measured("fair", OURS.name, "memory, 20 a key"), at_most=1.05),
        Goal(
            "memory of a key with one message",
            measured("fair", OURS.name, "memory, 1 a key"),
            at_most=250,
            unit="bytes",
        ),
        *(
            Goal(
                f"wait of the quiet, p99, {case}",
                measured("fair-wait", case, "p99"),
                at_most=60,
                unit="ms",
            )
            for case in (*map(fair_fleet.case, fair_fleet.NOISY), fair_fleet.BURST)
        ),
        Goal("wait of the quiet, p99, plain", measured("fair-wait", fair_fleet.PLAIN, "p99"), unit="ms"),
        Goal(
            "8 processes, 1,000 keys : plain",
            quotient(
                measured("fair-limit", OURS.name, "1,000 keys"),
                measured("fair-limit", OURS.name, fair_fleet.PLAIN),
            ),
            at_least=0.7,
        ),
    ]


GOALS = [*_fair()]
