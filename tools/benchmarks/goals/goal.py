"""A goal: a figure computed round by round, and what it has to be."""

from __future__ import annotations

from dataclasses import dataclass

from tools.benchmarks.quotients import Figure
from tools.benchmarks.results import Results, Spread


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
