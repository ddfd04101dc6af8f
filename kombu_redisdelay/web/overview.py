"""The first page: all queues, what comes, and what the doctor finds."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import reduce
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.doctor import Level
from kombu_redisdelay.operations.history import Counts, QueueHistory, queue_history
from kombu_redisdelay.operations.stats import QueueStats, queue_stats
from kombu_redisdelay.operations.timeline import Span, timeline
from kombu_redisdelay.web.pictures import Bar, bars
from kombu_redisdelay.web.site import fields_of, render, site_of
from kombu_redisdelay.web.sorting import COLUMNS, Sorting
from kombu_redisdelay.words import span

#: Minutes of the history that make the rates of the overview.
MINUTES = 60


def overview(request: Request) -> Response:
    """All queues."""
    site = site_of(request)
    store, names = site.queues.store, site.queue_names()
    stats = queue_stats(store, names)
    hours = [last_hour(history) for history in queue_history(store, names)]
    sorting = Sorting.of(fields_of(request).get("sort", ""))
    return render(
        request,
        "overview.html",
        rows=sorting.sort(list(zip(stats, hours, strict=True))),
        columns=COLUMNS,
        sorting=sorting,
        totals=_totals(stats),
        coming=coming(timeline(store, names)),
        findings=[finding for finding in site.findings() if finding.level is not Level.OK],
    )


def coming(spans: list[Span]) -> list[Bar]:
    """The timeline as bars."""
    found = bars([(label(each), each.messages) for each in spans])
    return [replace(bar, style="bar late") if index == 0 else bar for index, bar in enumerate(found)]


def label(part: Span) -> str:
    """When the messages of a span are due."""
    if part.start is None:
        return "overdue"
    return f"over {span(part.start)}" if part.end is None else f"≤ {span(part.end)}"


def last_hour(history: QueueHistory) -> Counts:
    """What has happened in the minutes that the history has."""
    return reduce(lambda total, period: total + period.counts, history.minutes, Counts(0, 0, 0, 0))


def _totals(stats: list[QueueStats]) -> dict[str, Any]:
    """The sums of all numbers of all queues."""
    names = [field.name for field in fields(QueueStats)]
    counted = [name for name in names if name in ("ready", "scheduled", "overdue", "unacked", "dead")]
    return {name: sum(getattr(queue, name) for queue in stats) for name in counted}
