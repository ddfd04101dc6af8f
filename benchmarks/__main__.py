"""Runs the benchmark. Exit status 0 if everything was measured, whatever came out, else 1."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks.goals import GOALS
from benchmarks.results import Results
from benchmarks.run import MeasurementError, run
from benchmarks.table import print_figures, print_goals
from benchmarks.workload import Case, Workload
from benchmarks.workloads import WORKLOADS


def main() -> int:
    options = _parser().parse_args()
    console = Console()
    workloads = chosen(options.only)
    failures: list[str] = []

    def failed(workload: Workload, case: Case, error: MeasurementError) -> None:
        failures.append(f"{workload.name}, {case.name}")
        console.print(f"[red]{failures[-1]} failed:[/]")
        console.print(str(error), markup=False, highlight=False)

    with console.status("starting the servers") as status:
        results = Results(
            run(
                workloads,
                options.rounds or (1 if options.quick else 3),
                quick=options.quick,
                on_start=lambda workload, case, round_: status.update(
                    f"round {round_ + 1}: {workload.name}, {case.name}"
                ),
                on_failure=failed,
            )
        )
    print_goals(console, GOALS, results)
    print_figures(console, workloads, results)
    for peer in dict.fromkeys(case.peer for workload in workloads for case in workload.cases):
        if (why := peer.missing()) is not None:
            console.print(f"Without {peer.name}: {why}.")
    return 1 if failures else 0


def chosen(only: Sequence[str]) -> list[Workload]:
    """The workloads named, or with a name that begins with one of the names and a hyphen; all if none."""
    return [
        workload
        for name, workload in WORKLOADS.items()
        if not only or any(name == word or name.startswith(f"{word}-") for word in only)
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute: less of it, and not all")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, help="how often each is measured (default: 3; with --quick, 1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
