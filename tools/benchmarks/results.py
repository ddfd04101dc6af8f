"""What was measured, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles


@dataclass(frozen=True)
class Record:
    """One measurement. `Measured` says what *figures* and *samples* are; *round* counts from 0."""

    workload: str
    case: str
    round: int
    figures: Mapping[str, float]
    samples: Sequence[float] = field(default_factory=list)


@dataclass(frozen=True)
class Spread:
    """Several rounds' figures as one."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        values = sorted(values)
        return cls(median(values), values[0], values[-1])


class Results:
    """All records of a run."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records = list(records)

    def rounds(self, workload: str, case: str, figure: str) -> dict[int, float]:
        """The figure by round; empty if it was not measured."""
        return {
            record.round: record.figures[figure]
            for record in self.records
            if (record.workload, record.case) == (workload, case) and figure in record.figures
        }

    def has(self, workload: str, case: str) -> bool:
        """Whether the case was measured at all."""
        return any((record.workload, record.case) == (workload, case) for record in self.records)

    def spread(self, workload: str, case: str, figure: str) -> Spread | None:
        values = self.rounds(workload, case, figure).values()
        return Spread.of(values) if values else None

    def samples(self, workload: str, case: str) -> list[float]:
        """Those of all rounds together."""
        return [
            sample
            for record in self.records
            if (record.workload, record.case) == (workload, case)
            for sample in record.samples
        ]


def percentile(values: Sequence[float], percent: int) -> float:
    """What *percent* (1 to 99) of the *values*, at least two, do not exceed; interpolated."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]
