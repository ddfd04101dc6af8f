"""The results as SVG, for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from benchmarks.peers import MEMORY, OURS, RABBITMQ, REDIS, REDIS_PLUS, Peer
from benchmarks.results import Results, percentile
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.lateness import CROWDED

#: Ours stands out; the others are told apart by their names as well.
_COLOURS = {
    OURS.name: "#0b6e99",
    CROWDED.name: "#7fc4de",
    REDIS.name: "#c0504d",
    REDIS_PLUS.name: "#d9984a",
    RABBITMQ.name: "#7b6aa8",
    MEMORY.name: "#8c8c8c",
}

_STYLE = Path(__file__).with_suffix(".mplstyle")

_THROUGHPUT = (
    ("publish", "immediate", "Publish, one by one", "messages/s"),
    ("consume", "rate", "Consume and ack, prefetch 16", "messages/s"),
    ("worker-solo", "rate", "Celery worker, solo", "tasks/s"),
    ("worker-threads", "rate", "Celery worker, threads", "tasks/s"),
    ("worker-prefork", "rate", "Celery worker, prefork", "tasks/s"),
)

Picture = Callable[[Results], "Figure | None"]


def draw(results: Results, directory: Path) -> list[Path]:
    """Write the pictures for which there are figures, and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(fname=_STYLE):
        for name, picture in PICTURES.items():
            figure = picture(results)
            if figure is not None:
                path = directory / f"benchmark-{name}.svg"
                figure.savefig(path, metadata={"Date": None})
                written.append(path)
    return written


def throughput(results: Results) -> Figure | None:
    """A panel for each workload, a bar for each peer, the spread on it."""
    panels = [panel for panel in _THROUGHPUT if results.spread(panel[0], OURS.name, panel[1])]
    if not panels:
        return None
    rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(9, 0.5 + 1.75 * rows), layout="constrained")
    axes = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axis, (workload, name, title, unit) in zip(axes, panels, strict=False):
        _bars(axis, results, workload, name)
        axis.set_title(title)
        axis.set_xlabel(unit)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    return figure


def _bars(axis: Axes, results: Results, workload: str, name: str) -> None:
    peers: list[Peer] = []
    for place, case in enumerate(WORKLOADS[workload].cases):
        spread = results.spread(workload, case.name, name)
        if spread is None:
            continue
        below, above = spread.median - spread.least, spread.most - spread.median
        axis.barh(place, spread.median, color=_COLOURS[case.name], height=0.7)
        axis.errorbar(spread.median, place, xerr=[[below], [above]], color="#222222", linewidth=1, capsize=2)
        axis.annotate(
            f"{spread.median:,.0f}",
            (spread.most, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
        peers.append(case.peer)
    axis.set_yticks(range(len(peers)), [peer.name for peer in peers])
    axis.invert_yaxis()
    # Room for the numbers.
    axis.set_xlim(0, axis.dataLim.x1 * 1.2)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.tick_params(axis="y", length=0)


def lateness(results: Results) -> Figure | None:
    """The share of tasks that had started so many ms after their time."""
    cases = [case.name for case in WORKLOADS["lateness"].cases if results.samples("lateness", case.name)]
    if not cases:
        return None
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axis = figure.subplots()
    longest = 0.0
    for case in cases:
        samples = sorted(results.samples("lateness", case))
        axis.ecdf(samples, color=_COLOURS[case], label=case, linewidth=2 if case == OURS.name else 1.4)
        longest = max(longest, percentile(samples, 99))
    axis.set_xscale("log")
    axis.set_xlim(0.3, longest * 1.1)
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(0, 1.01)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axis.grid(alpha=0.3)
    axis.set_title("Countdown tasks on an idle Celery worker, solo")
    axis.set_xlabel("started at most so late, ms")
    axis.set_ylabel("share of the tasks")
    axis.legend(frameon=False, loc="upper left")
    return figure


def growth(results: Results) -> Figure | None:
    """Time for a message against the number of those that are scheduled, at the server and at the client."""
    workload = WORKLOADS["growth"]
    counts = [case.sizes["scheduled"] for case in workload.cases]
    if any(results.spread("growth", case.name, "take") is None for case in workload.cases):
        return None
    figure = Figure(figsize=(9, 3.7), layout="constrained")
    server, client = figure.subplots(1, 2)
    _curves(server, results, counts, [name for name in workload.units if name.endswith(", server")])
    _curves(client, results, counts, [name for name in workload.units if not name.endswith(", server")])
    server.set_title("Scripts in Redis")
    client.set_title("As the client sees it")
    # The same for both.
    figure.legend(*server.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _curves(axis: Axes, results: Results, counts: Sequence[int], names: Sequence[str]) -> None:
    cases = WORKLOADS["growth"].cases
    for name, colour in zip(names, ("#0b6e99", "#d9984a", "#7b6aa8", "#c0504d"), strict=False):
        spreads = [spread for case in cases if (spread := results.spread("growth", case.name, name))]
        errors = [
            [spread.median - spread.least for spread in spreads],
            [spread.most - spread.median for spread in spreads],
        ]
        axis.errorbar(
            counts,
            [spread.median for spread in spreads],
            yerr=errors,
            color=colour,
            marker="o",
            markersize=4,
            capsize=2,
            label=name.removesuffix(", server"),
        )
    axis.set_xscale("log")
    axis.set_xlim(counts[0] / 2, counts[-1] * 2)
    axis.set_xticks(counts, [f"{count:,}" for count in counts])
    axis.minorticks_off()
    axis.set_yscale("log")
    # Whole decades, so that a small change looks small.
    axis.set_ylim(10 ** floor(log10(axis.dataLim.y0)), 10 ** ceil(log10(axis.dataLim.y1)))
    axis.grid(alpha=0.3)
    axis.set_xlabel("messages scheduled")
    axis.set_ylabel("µs a message")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


PICTURES: dict[str, Picture] = {"throughput": throughput, "lateness": lateness, "growth": growth}
