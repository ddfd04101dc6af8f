"""What became of the tasks, by the ledger."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tools.demo.ledger import Run


@dataclass(frozen=True)
class Report:
    """The result of the demo.

    Attributes:
        early: tasks that ran before their time.
        repeated: tasks that ran more than once.
        interrupted: those of them whose first run was in the worker that was killed.
        lateness: seconds from the due time to the first start, of all tasks, in rising order.
    """

    scheduled: int
    run: int
    early: int
    repeated: int
    interrupted: int
    lateness: Sequence[float]

    @classmethod
    def of(cls, scheduled: Collection[str], runs: Sequence[Run], killed_worker: int) -> Report:
        by_task: dict[str, list[Run]] = {}
        for run in runs:
            by_task.setdefault(run.task, []).append(run)
        first = {task: min(each, key=lambda run: run.started) for task, each in by_task.items()}
        repeated = [task for task, each in by_task.items() if len(each) > 1]
        lateness = sorted(run.started - run.due for run in first.values())
        return cls(
            scheduled=len(scheduled),
            run=len(by_task.keys() & set(scheduled)),
            early=sum(late < 0 for late in lateness),
            repeated=len(repeated),
            interrupted=sum(first[task].worker == killed_worker for task in repeated),
            lateness=lateness,
        )

    @property
    def lost(self) -> int:
        return self.scheduled - self.run

    @property
    def kept_its_word(self) -> bool:
        return not self.lost and not self.early


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest of the sorted *values* that *percent* of them do not exceed; NaN if there are none."""
    return values[math.ceil(len(values) * percent / 100) - 1] if values else math.nan
