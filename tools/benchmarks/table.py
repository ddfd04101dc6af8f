"""The results on a terminal: ratios first, then what they come from."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from tools.benchmarks.goals import Goal
from tools.benchmarks.results import Results, Spread
from tools.benchmarks.workload import Workload

#: The name of a figure and its unit, and what each case has of it.
Row = tuple[str, list[Spread | None]]


#: So many columns have a place in a terminal.
MOST_COLUMNS = 5


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.4f}"


def spread_text(spread: Spread) -> str:
    return f"{number(spread.least)}..{number(spread.most)}"


def goal_text(goal: Goal) -> str:
    if goal.at_least is not None:
        return f">= {number(goal.at_least)}"
    return f"<= {number(goal.at_most)}" if goal.at_most is not None else ""


def met_text(goal: Goal, results: Results) -> str:
    if goal.at_least is None and goal.at_most is None:
        return ""
    return {True: "yes", False: "NO", None: ""}[goal.met(results)]


def print_goals(console: Console, goals: Iterable[Goal], results: Results) -> None:
    console.print("[bold]Ratios[/], and what they have to be", highlight=False)
    table = Table(box=SIMPLE)
    table.add_column("what")
    table.add_column("median", justify="right")
    table.add_column("least..most", justify="right")
    table.add_column("goal", justify="right")
    table.add_column("met")
    for goal in goals:
        spread = goal.spread(results)
        if spread is None:
            continue
        met = met_text(goal, results)
        style = {"yes": "green", "NO": "red"}.get(met, "")
        unit = " x" if goal.unit == "x" else f" {goal.unit}"
        table.add_row(
            goal.what,
            number(spread.median) + unit,
            spread_text(spread),
            goal_text(goal),
            f"[{style}]{met}[/]" if style else met,
        )
    console.print(table)


def print_figures(console: Console, workloads: Iterable[Workload], results: Results) -> None:
    """A table for each workload: the median, and under it the least and the most."""
    for workload in workloads:
        names, rows = figure_rows(workload, results)
        if not rows:
            continue
        console.print(f"[bold]{workload.name}[/]: {workload.about}", highlight=False)
        table = Table(box=SIMPLE)
        table.add_column("")
        for name in names:
            table.add_column(name, justify="right", overflow="fold")
        for what, spreads in rows:
            table.add_row(what, *("\n".join(figure_texts(spread)) for spread in spreads))
        console.print(table)


def figure_rows(workload: Workload, results: Results) -> tuple[list[str], list[Row]]:
    """The names of the cases of which anything was measured, and a row for each figure; or the other way
    round, if there are more cases."""
    names = [case.name for case in workload.cases if results.has(workload.name, case.name)]
    rows = [
        (f"{figure}, {unit}", [results.spread(workload.name, name, figure) for name in names])
        for figure, unit in workload.units.items()
    ]
    rows = [row for row in rows if any(row[1])]
    if len(names) <= max(len(rows), MOST_COLUMNS):
        return names, rows
    return [what for what, _ in rows], [
        (name, [spreads[place] for _, spreads in rows]) for place, name in enumerate(names)
    ]


def figure_texts(spread: Spread | None) -> list[str]:
    """The median, and the spread if there were several rounds; nothing for what was not measured."""
    if spread is None:
        return []
    if spread.least == spread.most:
        return [number(spread.median)]
    return [number(spread.median), spread_text(spread)]
