"""The results on a terminal: ratios first, then what they come from."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from benchmarks.goals import Goal
from benchmarks.results import Results, Spread
from benchmarks.workload import Workload


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.4f}"


def spread_text(spread: Spread) -> str:
    return f"{number(spread.least)} .. {number(spread.most)}"


def goal_text(goal: Goal) -> str:
    if goal.at_least is not None:
        return f">= {number(goal.at_least)}"
    return f"<= {number(goal.at_most)}" if goal.at_most is not None else ""


def met_text(goal: Goal, results: Results) -> str:
    if goal.at_least is None and goal.at_most is None:
        return ""
    return {True: "yes", False: "NO", None: ""}[goal.met(results)]


def print_goals(console: Console, goals: Iterable[Goal], results: Results) -> None:
    table = Table(title="Ratios, and what they have to be", title_justify="left")
    table.add_column("what")
    table.add_column("median", justify="right")
    table.add_column("least .. most", justify="right")
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
    table = Table(title="Figures", title_justify="left")
    table.add_column("workload")
    table.add_column("case")
    table.add_column("figure")
    table.add_column("median", justify="right")
    table.add_column("least .. most", justify="right")
    table.add_column("unit")
    for workload in workloads:
        for figure, unit in workload.units.items():
            for case in workload.cases:
                spread = results.spread(workload.name, case.name, figure)
                if spread is not None:
                    table.add_row(
                        workload.name, case.name, figure, number(spread.median), spread_text(spread), unit
                    )
        table.add_section()
    console.print(table)
