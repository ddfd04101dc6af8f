"""What docs/performance.rst includes: the pictures, and a page's worth of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.benchmarks.goals import GOALS
from tools.benchmarks.pictures import draw
from tools.benchmarks.report import Report
from tools.benchmarks.table import figure_rows, figure_texts, goal_text, met_text, number, spread_text
from tools.benchmarks.workloads import WORKLOADS

#: Not .rst, which Sphinx would take for a page of its own.
FILE = "performance-run.inc"


def write(report: Report, docs: Path) -> list[Path]:
    """Write the files below the directory *docs*, and return their paths."""
    path = docs / FILE
    path.write_text(page(report))
    return [path, *draw(report.results, docs / "_static")]


def page(report: Report) -> str:
    """reStructuredText: the command, what it was run with, the goals, and all figures."""
    results = report.results
    environment = {name: value for name, value in report.environment.items() if name != "command"}
    goals = [
        (
            goal.what,
            f"{number(spread.median)} {goal.unit}",
            spread_text(spread),
            goal_text(goal),
            met_text(goal, results),
        )
        for goal in GOALS
        if (spread := goal.spread(results)) is not None
    ]
    figures: list[str] = []
    for workload in WORKLOADS.values():
        names, rows = figure_rows(workload, results)
        if rows:
            figures.append(f"{workload.name}: {workload.about}.")
            figures.append(
                _table(
                    ["", *names],
                    [24, *[76 // len(names)] * len(names)],
                    [[what, *(" | ".join(figure_texts(each)) for each in spreads)] for what, spreads in rows],
                )
            )
    parts = [
        ".. Written by python -m tools.benchmarks --docs; not by hand.",
        f".. code-block:: sh\n\n   {report.environment['command']}",
        "; ".join(f"{name}: {value}" for name, value in environment.items()) + ".",
        *(f"Without {what}: {why}." for what, why in report.missing.items()),
        _table(("what", "median", "least..most", "goal", "met"), (46, 14, 20, 12, 8), goals),
        "The figures behind them, the median before the least and the most of the rounds:",
        *figures,
    ]
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], widths: Sequence[int], rows: Iterable[Sequence[str]]) -> str:
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {' '.join(map(str, widths))}", ""]
    for row in (header, *rows):
        lines += [f"   {'*' if first else ' '} - {cell}".rstrip() for first, cell in _marked(row)]
    return "\n".join(lines)


def _marked(row: Sequence[str]) -> Iterable[tuple[bool, str]]:
    """Each cell, and whether it is the first one."""
    return ((place == 0, cell) for place, cell in enumerate(row))
