"""The first page: all queues, what comes, and what the doctor finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.doctor import Finding, Level
from kombu_redisdelay.operations.history import Counts
from kombu_redisdelay.operations.kept import Read
from kombu_redisdelay.operations.queue_columns import QUEUE_COLUMNS, QueueColumn
from kombu_redisdelay.operations.stats import QueueStats, queue_stats, read_each
from kombu_redisdelay.operations.timeline import Span
from kombu_redisdelay.web.fleet import Fleet, Part, read_hours
from kombu_redisdelay.web.pictures import Bar, bars
from kombu_redisdelay.web.site import MOST_EXAMINED, Site, address, fields_of, render, site_of
from kombu_redisdelay.web.sorting import COLUMNS, Row, Sorting
from kombu_redisdelay.words import span

#: Name -> a column with a number of messages, of which there is a total.
TOTALS = {name: column for name, column in QUEUE_COLUMNS.items() if column.state}

#: With more queues than this, there is a field to search them.
MOST_WITHOUT_SEARCH = 10

#: For a queue whose history was not read.
NOTHING = Counts()


def overview(request: Request) -> Response:
    """All queues, or those whose names contain a text: as many as fit on a page."""
    site, fields = site_of(request), fields_of(request)
    search = fields.get("search", "").strip()
    sorting = Sorting.of(fields.get("sort", ""))
    shown = {"search": search, "sort": sorting.field}
    read = site.fleet.get()
    fleet = read.value
    found = [queue for queue in fleet.stats if search.casefold() in queue.queue.casefold()]
    part = Part.of(fields.get("page", ""), len(found))
    rows = _rows(site, fleet, found, sorting, part)
    return render(
        request,
        "overview.html",
        rows=rows,
        columns=[column for column in COLUMNS if not column.is_rare or any(map(column.value, rows))],
        sorting=sorting,
        search=search,
        has_search=bool(search) or len(fleet.stats) > MOST_WITHOUT_SEARCH,
        part=part,
        here=lambda **query: address(request, "overview", **{**shown, **query}),
        count=len(found),
        all=len(fleet.stats),
        totals=totals(found),
        coming=coming(fleet.spans),
        blocked=sum(queue.blocked for queue in fleet.stats),
        refused=fleet.refused,
        memory=fleet.memory,
        read=read.moment if fleet.is_large else None,
        examined=_findings(site, fleet),
    )


def totals(queues: Sequence[QueueStats]) -> dict[str, tuple[QueueColumn, int]]:
    """Name of a column -> it, and how many messages these queues have together."""
    return {name: (column, sum(map(column.value, queues))) for name, column in TOTALS.items()}


def _rows(site: Site, fleet: Fleet, found: list[QueueStats], sorting: Sorting, part: Part) -> list[Row]:
    """The queues on a page. All are sorted by what is kept, and then those of the page are read anew."""
    hours = site.hours.get().value if sorting.column.is_history else {}
    rows = sorting.sort([(queue, hours.get(queue.queue, NOTHING)) for queue in found])[part.slice]
    store, names = site.queues.store, [queue.queue for queue, _ in rows]
    stats = read_each(queue_stats, store, names)[0] if fleet.is_large else [row[0] for row in rows]
    its_hours = read_hours(store, names)
    return [(queue, its_hours.get(queue.queue, NOTHING)) for queue in stats]


def _findings(site: Site, fleet: Fleet) -> Read[list[Finding]] | None:
    """What the doctor has found that is not in order. ``None`` if it was not asked."""
    found = site.findings.get() if len(fleet.stats) <= MOST_EXAMINED else site.findings.last
    return found and Read([finding for finding in found.value if finding.level is not Level.OK], found.moment)


def coming(spans: list[Span]) -> list[Bar]:
    """The timeline as bars."""
    found = bars([(label(each), each.messages) for each in spans])
    return [replace(bar, style="bar late") if index == 0 else bar for index, bar in enumerate(found)]


def label(part: Span) -> str:
    """When the messages of a span are due."""
    if part.start is None:
        return "overdue"
    return f"over {span(part.start)}" if part.end is None else f"≤ {span(part.end)}"
