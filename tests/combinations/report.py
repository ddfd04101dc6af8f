"""What is said about the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.combinations.dimensions import Row
from tests.combinations.scenario import Outcome
from tests.combinations.waits import stock_waits, waits


def described(row: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.items())


def line(number: int, outcome: Outcome) -> str:
    """A row in a line: whether it is as it must be, and how long healthy tasks waited."""
    observed = outcome.observed
    said = [f"ours {waits(observed.row, observed.ours)}"]
    if observed.stock is not None:
        said.append(f"redis:// {stock_waits(observed.row, observed.stock)}")
    runs = f", run {outcome.runs} times" if outcome.runs > 1 else ""
    verdict = f"WRONG ({', '.join(outcome.problems)})" if outcome.problems else "as it must be"
    return f"row {number}: {verdict}{runs}; {'; '.join(said)}"


def paragraph(seed: int, number: int, row: Row, problems: Mapping[str, list[str]], options: str = "") -> str:
    """What was wrong with a row, and how to run it again."""
    texts = " ".join(f"[{name}] {'; '.join(found)}." for name, found in problems.items())
    again = f"python -m tests.combinations --seed {seed} --row {number}{options}"
    return f"row {number}: {described(row)}.\n  {texts}\n  Again: {again}"


def as_json(number: int, row: Row, outcome: Outcome) -> dict[str, Any]:
    observed = outcome.observed
    measured = {"ours": waits(row, observed.ours)}
    if observed.stock is not None:
        measured["redis"] = stock_waits(row, observed.stock)
    return {
        "row": number,
        "values": dict(row),
        "problems": outcome.problems,
        "runs": outcome.runs,
        "waits": {
            name: [round(each.quantile(part), 4) for part in (0.5, 0.95, 1.0)]
            for name, each in measured.items()
        },
    }
