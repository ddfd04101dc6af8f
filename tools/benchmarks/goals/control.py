"""What has to come out of queues that are paused or limited."""

from __future__ import annotations

from tools.benchmarks.goals.goal import Goal
from tools.benchmarks.peers import OURS
from tools.benchmarks.quotients import Figure, measured, quotient
from tools.benchmarks.workloads import control


def _control() -> list[Goal]:
    def to_none(name: str, figure: str) -> Figure:
        return quotient(measured("control", name, figure), measured("control", control.NO_CONTROL, figure))

    def binding(figure: str) -> Figure:
        return measured("control-binding", OURS.name, figure)

    return [
        *(
            Goal(f"consume + ack, {name} : no control", to_none(name, "rate"), at_least=0.8)
            for name in (control.CONCURRENCY, control.RATE)
        ),
        Goal(
            "10 consumers of a paused queue, CPU of Redis",
            binding("paused, server CPU"),
            at_most=1,
            unit="%",
        ),
        Goal("taken at a rate of 200/s : 200/s", binding("share"), at_least=0.99),
        *(
            Goal(f"later than the rate allows, {figure}", binding(figure), at_most=most, unit="ms")
            for figure, most in {"p50": 1, "p99": 5}.items()
        ),
    ]


GOALS = [*_control()]
