"""What ran and when, in the tasks' own words: a file that the broker has no part in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tools.harness.journal import add_line, whole_lines

VARIABLE = "REDISDELAY_DEMO_LEDGER"


class Run(NamedTuple):
    """One start of a task.

    Attributes:
        due: when it was to start, seconds since the epoch.
        started: when it did.
        worker: PID of the worker.
    """

    task: str
    due: float
    started: float
    worker: int


class Ledger:
    """A file with a line for each run, which any number of processes may add to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def from_environment(cls) -> Ledger:
        return cls(Path(os.environ[VARIABLE]))

    def add(self, run: Run) -> None:
        add_line(self._path, f"{run.task} {run.due!r} {run.started!r} {run.worker}")

    def runs(self) -> list[Run]:
        """All runs so far, in the order in which they were noted."""
        runs = []
        for line in whole_lines(self._path):
            task, due, started, worker = line.split()
            runs.append(Run(task, float(due), float(started), int(worker)))
        return runs
