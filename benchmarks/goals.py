"""What has to come out: issue 4's goals, each as a figure computed round by round.

Rounds are compared with themselves, because the machine is not the same in each: what is told is the median
of the ratios, and not the ratio of the medians.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers import MEMORY, OURS, RABBITMQ, REDIS, REDIS_PLUS, ROUND_TRIP, Peer
from benchmarks.results import Results, Spread

#: A figure by round.
Rounds = dict[int, float]
Figure = Callable[[Results], Rounds]


@dataclass(frozen=True)
class Goal:
    """A figure that has to be *at_least* or *at_most* something.

    Attributes:
        unit: of the figure; "x" for a ratio.
    """

    what: str
    figure: Figure
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"

    def spread(self, results: Results) -> Spread | None:
        """What came out; ``None`` where something is missing for it."""
        values = self.figure(results).values()
        return Spread.of(values) if values else None

    def met(self, results: Results) -> bool | None:
        """Whether the median is as it has to be; ``None`` where something is missing for it."""
        spread = self.spread(results)
        if spread is None:
            return None
        return (self.at_least is None or spread.median >= self.at_least) and (
            self.at_most is None or spread.median <= self.at_most
        )


def measured(workload: str, case: str, figure: str) -> Figure:
    """A figure as it was measured."""
    return lambda results: results.rounds(workload, case, figure)


def quotient(dividend: Figure, divisor: Figure) -> Figure:
    """One figure by another, in the rounds that have both."""

    def figure(results: Results) -> Rounds:
        above, below = dividend(results), divisor(results)
        return {round_: above[round_] / below[round_] for round_ in sorted(above.keys() & below.keys())}

    return figure


def ours_to(peer: Peer, workload: str, figure: str) -> Figure:
    """Our figure by the *peer*'s."""
    return quotient(measured(workload, OURS.name, figure), measured(workload, peer.name, figure))


def publish_limit(figure: str) -> Figure:
    """What kombu's own work and one round trip leave possible, in messages a second."""
    kombu, trip = measured("publish", MEMORY.name, figure), measured("round-trip", ROUND_TRIP.name, "rate")

    def limit(results: Results) -> Rounds:
        above, below = kombu(results), trip(results)
        return {
            round_: 1 / (1 / above[round_] + 1 / below[round_])
            for round_ in sorted(above.keys() & below.keys())
        }

    return limit


def _consume() -> list[Goal]:
    goals = {REDIS: 10.0, REDIS_PLUS: 6.0, RABBITMQ: 1.5, MEMORY: 0.45}
    return [
        Goal(f"consume + ack, to {peer.name}", ours_to(peer, "consume", "rate"), at_least=least)
        for peer, least in goals.items()
    ] + [
        Goal(
            f"Redis CPU a message, consume + ack, to {REDIS.name}",
            ours_to(REDIS, "consume", "server CPU"),
            at_most=0.3,
        )
    ]


def _publish() -> list[Goal]:
    goals = []
    for figure in ("immediate", "scheduled"):
        ours = measured("publish", OURS.name, figure)
        goals += [
            Goal(f"publish, {figure}, to the limit", quotient(ours, publish_limit(figure)), at_least=0.65),
            Goal(f"publish, {figure}, to {REDIS.name}", ours_to(REDIS, "publish", figure), at_least=3),
        ]
    return goals + [
        Goal(f"publish, {figure}, to {REDIS.name}", ours_to(REDIS, "publish", figure))
        for figure in ("batch", "scheduled batch")
    ]


def _worker() -> list[Goal]:
    return [
        Goal(f"worker, {pool}, to {peer.name}", ours_to(peer, f"worker-{pool}", "rate"), at_least=least)
        for pool, times in {"solo": 5.0, "threads": 3.0, "prefork": 2.5}.items()
        for peer, least in {REDIS: times, RABBITMQ: 1.0}.items()
    ]


GOALS: list[Goal] = [*_consume(), *_publish(), *_worker()]
