"""What is to be seen: events as they come, the state below them, and at the end a table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tools.demo.counts import Counts
from tools.demo.report import Report, percentile
from tools.demo.worker import Worker

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

WORKER_STYLES = {"up": "green", "starting": "yellow", "dead": "bold red"}

#: Seconds between two lines of state, where they cannot be overwritten.
LINE_INTERVAL = 1.0


class Screen:
    """A terminal, or whatever else standard output is; then the state comes as a line a second."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._console = Console(highlight=False)
        self._is_animated = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._start = time.monotonic()
        self._next_line = LINE_INTERVAL

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def say(self, event: str, style: str = "") -> None:
        """Note an event."""
        self._console.print(Text(f"{self._elapsed:5.1f} s  {event}", style))

    def show(self, counts: Counts, run: int, workers: Sequence[Worker]) -> None:
        """Show the state."""
        if self._is_animated:
            self._live.update(self._state(counts, run, workers), refresh=True)
        elif self._elapsed >= self._next_line:
            self._next_line += LINE_INTERVAL
            up = sum(worker.state == "up" for worker in workers)
            self.say(
                f"  scheduled {counts.scheduled:3}  ready {counts.ready:3}  "
                f"unacked {counts.unacked:3}  run {run:3}  workers up {up}"
            )

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    def _state(self, counts: Counts, run: int, workers: Sequence[Worker]) -> Panel:
        bars = Table.grid(padding=(0, 2), expand=True)
        bars.add_column(no_wrap=True)
        bars.add_column(no_wrap=True, style="dim")
        bars.add_column(ratio=1)
        bars.add_column(justify="right", min_width=4)
        for name, meaning, count, style in (
            ("scheduled", "wait in Redis for their time", counts.scheduled, "cyan"),
            ("ready", "due, wait for a worker", counts.ready, "yellow"),
            ("unacked", "held by a worker", counts.unacked, "magenta"),
            ("run", "by the tasks' own ledger", run, "green"),
        ):
            bar = ProgressBar(self._total, count, complete_style=style, finished_style=style, style="grey23")
            bars.add_row(Text(name, style), meaning, bar, Text(str(count), f"bold {style}"))
        crew = Text("   ").join(
            Text(f"{worker.title} {worker.state}", WORKER_STYLES[worker.state]) for worker in workers
        )
        return Panel(
            Group(bars, "", crew),
            title="kombu-redisdelay",
            subtitle=f"{self._elapsed:.1f} s",
            border_style="dim",
            padding=(1, 2),
        )

    def conclude(self, report: Report) -> None:
        """Show the result."""
        table = Table(box=box.ROUNDED, border_style="dim", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_column(style="dim")
        table.add_row("tasks scheduled", str(report.scheduled))
        table.add_row("run", str(report.run))
        table.add_row("lost", _count_of_wrongs(report.lost))
        table.add_row("run before their time", _count_of_wrongs(report.early))
        table.add_row("run twice", str(report.repeated), _why_twice(report))
        table.add_row("lateness p50 / p99", _lateness(report.lateness), "of all, by their first run")
        self._console.print(table)


def _count_of_wrongs(count: int) -> Text:
    return Text(str(count), "bold red" if count else "bold green")


def _lateness(values: Sequence[float]) -> str:
    return " / ".join(f"{percentile(values, percent) * 1000:.0f}" for percent in (50, 99)) + " ms"


def _why_twice(report: Report) -> str:
    if not report.repeated:
        return ""
    which = "" if report.interrupted == report.repeated else f"{report.interrupted} of them "
    return f"{which}running when the worker was killed"
