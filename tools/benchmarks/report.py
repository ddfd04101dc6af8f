"""A run as JSON, which can be read again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.benchmarks.goals import GOALS
from tools.benchmarks.results import Record, Results, Spread


@dataclass(frozen=True)
class Report:
    """What came of a run.

    Attributes:
        environment: what it was made with.
        missing: what was not measured, by name, and why.
    """

    environment: Mapping[str, str]
    missing: Mapping[str, str]
    records: Sequence[Record]

    @property
    def results(self) -> Results:
        return Results(self.records)

    def write(self, path: Path) -> None:
        results = self.results
        content = {
            "environment": self.environment,
            "missing": self.missing,
            "goals": [
                {
                    "what": goal.what,
                    "unit": goal.unit,
                    "at_least": goal.at_least,
                    "at_most": goal.at_most,
                    "met": goal.met(results),
                    **_spread(goal.spread(results)),
                }
                for goal in GOALS
            ],
            "records": [asdict(record) for record in self.records],
        }
        path.write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Report:
        """What `write` has written.

        Raises:
            ValueError: it is something else.
        """
        try:
            content = json.loads(path.read_text())
            records = [Record(**record) for record in content["records"]]
            return cls(content["environment"], content["missing"], records)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not what --json writes: {error}") from error


def _spread(spread: Spread | None) -> dict[str, Any]:
    return {} if spread is None else asdict(spread)
