"""The results as SVG, for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from tools.benchmarks.peers import MEMORY, OURS, RABBITMQ, REDIS, REDIS_PLUS, Peer
from tools.benchmarks.results import Results, percentile
from tools.benchmarks.workloads import WORKLOADS, fair_fleet, queues, together
from tools.benchmarks.workloads.lateness import CROWDED

#: Ours stands out; the others are told apart by their names as well.
_COLOURS = {
    OURS.name: "#0b6e99",
    CROWDED.name: "#7fc4de",
    together.BLOCK: "#053b52",
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
    names = [name.removesuffix(", server") for name in workload.units if name.endswith(", server")]
    _curves(client, results, counts, names)
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
    # Written out, ten million and the million before it overlap.
    axis.set_xticks(counts)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.minorticks_off()
    axis.set_yscale("log")
    # Whole decades, so that a small change looks small.
    axis.set_ylim(10 ** floor(log10(axis.dataLim.y0)), 10 ** ceil(log10(axis.dataLim.y1)))
    axis.grid(alpha=0.3)
    axis.set_xlabel("messages scheduled")
    axis.set_ylabel("µs a message")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def many_queues(results: Results) -> Figure | None:
    """Rate, and the wait of a lone message, against the number of queues."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    rate, wait = figure.subplots(1, 2)
    for peer in (OURS, REDIS, REDIS_PLUS):
        counts = [n for n in queues.COUNTS if results.spread("queues", queues.case(peer, n), "rate")]
        for axis, name in ((rate, "rate"), (wait, "lone message")):
            spreads = [results.spread("queues", queues.case(peer, n), name) for n in counts]
            _line(axis, peer.name, counts, [spread.median for spread in spreads if spread])
    if not rate.lines:
        return None
    for axis, title in ((rate, "Consume and ack, messages/s"), (wait, "A lone message, ms")):
        axis.set_xscale("log")
        axis.set_xticks(queues.COUNTS, [f"{count:,}" for count in queues.COUNTS])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.set_title(title)
        axis.set_xlabel("queues of one consumer")
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    rate.legend(frameon=False)
    return figure


def published_together(results: Results) -> Figure | None:
    """Time for a group of tasks against the round trip."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axis = figure.subplots()
    for name in (together.BLOCK, OURS.name, REDIS.name, REDIS_PLUS.name, RABBITMQ.name):
        spreads = {
            ms: results.spread("batch", together.case(name, ms), "group") for ms in together.ROUND_TRIPS
        }
        known = {ms: spread.median for ms, spread in spreads.items() if spread is not None}
        _line(axis, name, list(known), list(known.values()))
    if not axis.lines:
        return None
    axis.set_yscale("log")
    axis.set_xticks(together.ROUND_TRIPS)
    axis.grid(alpha=0.3)
    axis.set_title(f"A group of {together.TASKS} tasks, published by one apply_async")
    axis.set_xlabel("round trip, ms")
    axis.set_ylabel("ms")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.legend(frameon=False)
    return figure


def _line(axis: Axes, name: str, x: Sequence[float], y: Sequence[float]) -> None:
    if x:
        axis.plot(x, y, color=_COLOURS[name], marker="o", markersize=4, label=name)


def wait_of_the_quiet(results: Results) -> Figure | None:
    """The half and 99 % of the waits beside a backlog: in a plain queue, and in a fair one."""
    cases = [fair_fleet.PLAIN, *map(fair_fleet.case, fair_fleet.NOISY), fair_fleet.BURST]
    spreads = {
        case: [results.spread("fair-wait", case, name) for name in ("p50", "p99")]
        for case in reversed(cases)
        if results.has("fair-wait", case)
    }
    if not spreads:
        return None
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    axis = figure.subplots()
    for place, (case, (half, most)) in enumerate(spreads.items()):
        if half is None or most is None:
            continue
        colour = _COLOURS[REDIS.name if case == fair_fleet.PLAIN else OURS.name]
        axis.barh(place, most.median, color=colour, height=0.6)
        axis.plot(half.median, place, "|", color="white", markersize=12)
        axis.annotate(
            _duration(most.median),
            (most.median, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    axis.set_yticks(range(len(spreads)), list(spreads))
    axis.set_xscale("log")
    axis.set_xlim(1, axis.dataLim.x1 * 8)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _duration(value)))
    axis.minorticks_off()
    axis.tick_params(axis="y", length=0)
    axis.set_title("Wait of a message whose key has no others: 99 % (line: half)")
    return figure


def _duration(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms < 1000 else f"{ms / 1000:,.0f} s"


PICTURES: dict[str, Picture] = {
    "throughput": throughput,
    "lateness": lateness,
    "growth": growth,
    "queues": many_queues,
    "batch": published_together,
    "fair": wait_of_the_quiet,
}
