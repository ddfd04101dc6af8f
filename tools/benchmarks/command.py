"""Runs the benchmark. Exit status 0 if everything was measured, whatever came out, else 1."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from rich.console import Console

from tools.benchmarks import documents
from tools.benchmarks.environment import describe
from tools.benchmarks.goals import GOALS
from tools.benchmarks.pictures import draw
from tools.benchmarks.report import Report
from tools.benchmarks.results import Record
from tools.benchmarks.run import MeasurementError, run, start_servers
from tools.benchmarks.table import print_figures, print_goals
from tools.benchmarks.workload import Case, Workload
from tools.benchmarks.workloads import WORKLOADS


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    console = Console()
    if options.read is not None:
        try:
            report = Report.read(options.read)
        except (OSError, ValueError) as error:
            parser.error(str(error))
    else:
        workloads = chosen(options.only)
        if not workloads:
            parser.error(f"--only: none of {', '.join(WORKLOADS)}")
        long = [workload.name for workload in workloads if workload.quick_sizes is None]
        if options.quick and options.only and long:
            parser.error(
                f"too long for --quick: {', '.join(long)}. Name others, or say --rounds 1 instead of --quick"
            )
        rounds = options.rounds or (1 if options.quick else 5)
        report = make(console, workloads, rounds, quick=options.quick)

    print_goals(console, GOALS, report.results)
    print_figures(console, WORKLOADS.values(), report.results)
    for what, why in report.missing.items():
        console.print(f"Without {what}: {why}.")
    written: list[Path] = []
    if options.json is not None:
        report.write(options.json)
        written.append(options.json)
    if options.pictures is not None:
        written += draw(report.results, options.pictures)
    if options.docs is not None:
        written += documents.write(report, options.docs)
    for path in written:
        console.print(f"Written: {path}")
    return 1 if FAILED in report.missing.values() else 0


#: Why something that could have been measured was not.
FAILED = "the measurement failed"


def make(console: Console, workloads: Sequence[Workload], rounds: int, *, quick: bool) -> Report:
    """Measure, and say meanwhile what is going on."""
    peers = dict.fromkeys(case.peer for workload in workloads for case in workload.cases)
    missing = {w.name: "takes too long for --quick" for w in workloads if quick and w.quick_sizes is None}
    records: list[Record] = []

    def failed(workload: Workload, case: Case, error: MeasurementError) -> None:
        what = f"{workload.name}, {case.name}"
        missing[what] = FAILED
        console.print(f"[red]{what} failed:[/]")
        console.print(str(error), markup=False, highlight=False)

    with console.status("starting the servers") as status, start_servers(peers) as servers:

        def started(workload: Workload, case: Case, round_: int) -> None:
            status.update(f"{workload.name}, {case.name}, round {round_ + 1}")

        missing |= {peer.name: why for peer in peers if (why := servers.missing(peer)) is not None}
        environment = describe(servers)
        began = monotonic()
        for record in run(servers, workloads, rounds, quick=quick, on_start=started, on_failure=failed):
            records.append(record)
    environment["took"] = f"{monotonic() - began:.0f} s"
    return Report(environment, missing, records)


def chosen(only: Sequence[str]) -> list[Workload]:
    """The workloads named, or with a name that begins with one of the names and a hyphen; all if none."""
    return [
        workload
        for name, workload in WORKLOADS.items()
        if not only or any(name == word or name.startswith(f"{word}-") for word in only)
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks",
        description=__doc__,
        epilog="\n".join(["workloads (* with --quick, too):", *map(_line, WORKLOADS.values())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one to three minutes: less of it, and not all")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help='some workloads; "worker" is all of worker-*'
    )
    parser.add_argument(
        "--rounds", type=int, help="how often each is measured, at most (default: 5; 1 with --quick)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to FILE")
    parser.add_argument("--pictures", type=Path, metavar="DIRECTORY", help="also draw, as SVG")
    parser.add_argument(
        "--docs", type=Path, metavar="DIRECTORY", help="write what docs/performance.rst includes"
    )
    parser.add_argument("--read", type=Path, metavar="FILE", help="measure nothing; show what --json wrote")
    return parser


def _line(workload: Workload) -> str:
    return f"{' ' if workload.quick_sizes is None else '*'} {workload.name:16}{workload.about}"
