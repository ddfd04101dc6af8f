"""``celery delayed timeline``"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import click

from kombu_redisdelay.cli.broker import connect, queue_names
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import json_option, queues_option
from kombu_redisdelay.cli.output import (
    count,
    fixed,
    flexible,
    progress,
    right,
    show,
    show_json,
    table,
    terminal,
)
from kombu_redisdelay.cli.table import Cell, Table
from kombu_redisdelay.operations.columns import LATE
from kombu_redisdelay.operations.messages import Messages
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import SCHEDULED, STATES
from kombu_redisdelay.operations.timeline import EDGES, Span, lost_due_times, span_index, spans, timeline
from kombu_redisdelay.words import blocked, span

#: Bars from 0 to 8 eighths of the height of a line, for the timeline of one task in one line.
_HEIGHTS = " ▁▂▃▄▅▆▇█"

#: Bars from 0 to 8 eighths of the width of a column.
_WIDTHS = " ▏▎▍▌▋▊▉█"

#: The width of the longest bar, if there is room for it, and of everything before the bar, in columns.
_BAR_COLUMNS = 50
_OTHER_COLUMNS = 28
_WIDEST = _BAR_COLUMNS + _OTHER_COLUMNS


@click.command("timeline")
@queues_option
@click.option("--by", type=click.Choice(["task"]), help="One timeline for each task. Reads every message.")
@json_option
def command(queues: tuple[str, ...], by: str | None, as_json: bool) -> None:
    """Show how many scheduled messages become due when."""
    messages = connect(Messages)
    names = queue_names(messages, queues)
    if by is None:
        found = timeline(messages.store, names)
        if as_json:
            show_json(map(_as_json, found))
        else:
            target = terminal()
            show(timeline_table(found, target.width if target else _WIDEST))
            _tell_blocked(messages, names)
        return
    by_task = _read(messages, names)
    if not by_task:
        echo("No scheduled messages found.", err=True)
    elif as_json:
        show_json({"task": task, **_as_json(part)} for task in by_task for part in by_task[task])
    else:
        show(_task_table(by_task))
        _tell_blocked(messages, names)


def _tell_blocked(messages: Messages, queues: Sequence[str]) -> None:
    count = lost_due_times(messages.store, queues)
    if count:
        echo(f"{blocked(count)}.")


def timeline_table(found: Sequence[Span], width: int) -> Table:
    """Return the timeline as a table that is not wider than *width*, if this leaves any room for bars."""
    columns = max(1, min(_BAR_COLUMNS, width - _OTHER_COLUMNS))
    rows = table(right("DUE IN"), right("MESSAGES"), fixed(""))
    largest = max(1, *(part.messages for part in found))
    for part in found:
        style = LATE if part.start is None else STATES[SCHEDULED].style
        rows.add_row(
            label(part), count(part.messages, style), Cell(bar(part.messages / largest, columns), style)
        )
    return rows


def label(part: Span) -> str:
    """When the messages of a span are due."""
    if part.start is None:
        return "overdue"
    if part.end is None:
        return f"more than {span(part.start)}"
    return f"up to {span(part.end)}"


def bar(share: float, columns: int) -> str:
    """Return a bar. It is visible for every share above 0."""
    full, part = divmod(ceil(share * columns * 8), 8)
    return ("█" * full + _WIDTHS[part]).rstrip()


def _read(messages: Messages, queues: Sequence[str]) -> dict[str, list[Span]]:
    """Return the timeline of each task. The task with the most messages comes first."""
    selection, now_ms = Selection(state=SCHEDULED, queue=queues), messages.store.now_ms()
    counts: dict[str, list[int]] = {}
    with progress() as bar:
        job = bar.add_task("Reading", total=messages.count(selection))
        for message in messages.select(selection):
            bar.advance(job)
            # What waits for its unique key has no due time.
            if message.due is not None:
                of_task = counts.setdefault(message.task or "(no task)", [0] * (len(EDGES) + 1))
                of_task[span_index(message.due.timestamp() * 1000, now_ms)] += 1
    return {task: spans(counts[task]) for task in sorted(counts, key=lambda task: -sum(counts[task]))}


def _task_table(by_task: dict[str, list[Span]]) -> Table:
    rows = table(flexible("TASK"), right("MESSAGES"), fixed("OVERDUE TO 4 WEEKS"))
    for task, found in by_task.items():
        largest = max(part.messages for part in found)
        line = "".join(_HEIGHTS[ceil(part.messages / largest * 8)] for part in found)
        rows.add_row(task, count(sum(part.messages for part in found), "cyan"), line)
    return rows


def _as_json(part: Span) -> dict[str, Any]:
    return {"from_seconds": part.start, "to_seconds": part.end, "messages": part.messages}
