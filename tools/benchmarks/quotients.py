"""Figures computed round by round from those that were measured.

Rounds are compared with themselves, because the machine is not the same in each: what is told is the median
of the ratios, and not the ratio of the medians.
"""

from __future__ import annotations

from collections.abc import Callable

from tools.benchmarks.peers import MEMORY, OURS, Peer
from tools.benchmarks.results import Results
from tools.benchmarks.workloads import WORKLOADS

#: A figure by round.
Rounds = dict[int, float]


Figure = Callable[[Results], Rounds]


def measured(workload: str, case: str, figure: str) -> Figure:
    """A figure as it was measured.

    Raises:
        KeyError: no workload measures that.
    """
    if figure not in WORKLOADS[workload].units or case not in [
        each.name for each in WORKLOADS[workload].cases
    ]:
        raise KeyError(f"{workload}, {case}, {figure}")
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
    kombu, trip = measured("publish", MEMORY.name, figure), measured("publish", OURS.name, "round trip")

    def limit(results: Results) -> Rounds:
        above, below = kombu(results), trip(results)
        return {
            round_: 1 / (1 / above[round_] + 1 / below[round_])
            for round_ in sorted(above.keys() & below.keys())
        }

    return limit


def among(pick: Callable[[list[float]], float], *figures: Figure) -> Figure:
    """What *pick* makes of several, in the rounds that have all of them."""

    def figure(results: Results) -> Rounds:
        every = [figure(results) for figure in figures]
        shared = set(every[0]).intersection(*every[1:])
        return {round_: pick([values[round_] for values in every]) for round_ in sorted(shared)}

    return figure


def largest(*figures: Figure) -> Figure:
    """The largest of several, in the rounds that have all of them."""
    return among(max, *figures)
