"""The table and the JSON."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="the extra `bench` is not installed")

from rich.console import Console

from tools.benchmarks.goals import GOALS
from tools.benchmarks.report import Report
from tools.benchmarks.results import Record
from tools.benchmarks.table import number, print_figures, print_goals
from tools.benchmarks.workloads import WORKLOADS


def everything(rounds: int = 2) -> Report:
    """A report in which every case of every workload has all its figures."""
    return Report(
        {"command": "python -m tools.benchmarks", "date": "today"},
        {"RabbitMQ": "it is not installed"},
        [
            Record(workload.name, case.name, round_, dict.fromkeys(workload.units, 10.0 + round_), [1.0, 2.0])
            for workload in WORKLOADS.values()
            for case in workload.cases
            for round_ in range(rounds)
        ],
    )


def printed(report: Report) -> str:
    console = Console(file=StringIO(), width=200)
    print_goals(console, GOALS, report.results)
    print_figures(console, WORKLOADS.values(), report.results)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0956, "0.0956"), (1.2345, "1.23"), (99.94, "99.9"), (999.6, "1,000"), (12345.6, "12,346")],
)
def test_numbers_are_readable(value: float, text: str) -> None:
    assert number(value) == text


def test_every_goal_and_every_case_is_in_the_table() -> None:
    text = printed(everything())
    assert all(goal.what in text for goal in GOALS)
    assert all(case.name in text for workload in WORKLOADS.values() for case in workload.cases)


def test_a_goal_is_said_to_be_met_or_not() -> None:
    # Everything is the same as with everybody else.
    lines = printed(everything(rounds=1)).splitlines()
    (row,) = [line.split() for line in lines if line.strip().startswith("consume + ack : kombu redis")]
    assert row[-3:] == [">=", "10", "NO"]
    (row,) = [line.split() for line in lines if "ping-pong, p50 : kombu redis" in line]
    assert row[-3:] == ["<=", "1", "yes"]


def test_nothing_measured_is_an_empty_table() -> None:
    assert "consume" not in printed(Report({}, {}, []))


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    written = everything()
    written.write(tmp_path / "run.json")
    assert Report.read(tmp_path / "run.json") == written


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"environment": {}, "missing": {}, "records": [{"a": 1}]}']
)
def test_what_is_no_report_is_an_error_with_the_name_of_the_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"run\.json is not what --json writes"):
        Report.read(path)
