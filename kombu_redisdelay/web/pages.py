"""The pages that only show: the first one, and those of a queue, the doctor, memory, a background work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from operator import attrgetter

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from kombu_redisdelay.operations.columns import QUEUE_COLUMNS, QueueColumn
from kombu_redisdelay.operations.doctor import Finding, Level
from kombu_redisdelay.operations.history import Counts, queue_history
from kombu_redisdelay.operations.limits import kinds_set
from kombu_redisdelay.operations.memory_report import kind_of, number_of_messages, of_redis, remarks
from kombu_redisdelay.operations.queue_reasons import unknown_tasks
from kombu_redisdelay.operations.states import STATES
from kombu_redisdelay.operations.stats import QueueStats, queue_stats, read_each
from kombu_redisdelay.operations.timeline import Span, timeline
from kombu_redisdelay.operations.viewers import Read
from kombu_redisdelay.web.actions import actions
from kombu_redisdelay.web.choice import Choice, well_formed
from kombu_redisdelay.web.fleet import Fleet, Part, last_hour, read_hours
from kombu_redisdelay.web.form import read_ours
from kombu_redisdelay.web.pictures import HOUR, MINUTE, WEEK, Bar, bars, happened
from kombu_redisdelay.web.site import MOST_EXAMINED, Site, address, check_may_act, fields_of, render, site_of
from kombu_redisdelay.web.sorting import COLUMNS, Row, Sorting
from kombu_redisdelay.words import percent, size, span

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


#: How many of the tasks that no worker knows are on the page.
MOST_TASKS = 10


def queue(request: Request) -> Response:
    """One queue."""
    site, name = site_of(request), well_formed(fields_of(request).get("name", ""))
    store, now = site.queues.store, datetime.now(timezone.utc)
    delivered = attrgetter("delivered")
    [stats] = queue_stats(store, [name])
    [history] = queue_history(store, [name])
    return render(
        request,
        "queue.html",
        queue=stats,
        totals=totals([stats]),
        choice=Choice(queue=name),
        actions=actions(),
        is_known=site.is_known(name),
        kinds_set=kinds_set,
        coming=coming(timeline(store, [name])),
        minutes=happened(history.minutes, delivered, now, MINUTE, HOUR),
        hours=happened(history.hours, delivered, now, HOUR, WEEK),
        last_hour=last_hour(history),
        is_counted=bool(history.hours),
        unknown_tasks=unknown_tasks(store, [name])[:MOST_TASKS],
    )


#: Findings that are shown.
MOST_FINDINGS = 500


def doctor(request: Request) -> Response:
    """All findings, each with its remedy."""
    findings = site_of(request).findings.get()
    return render(
        request,
        "doctor.html",
        # What is wrong comes first.
        findings=findings.value,
        most=MOST_FINDINGS,
        examined=findings.moment,
        actions=actions(),
        states=STATES,
        choice_of=lambda queue: Choice(queue=queue),
    )


#: Tasks whose shares of the memory are shown.
MOST_SHARES = 50


def memory(request: Request) -> Response:
    """What fills Redis, by queue, state and task, the largest first."""
    read = site_of(request).memory.get()
    found = read.value
    rest = found.tasks[MOST_SHARES:]
    return render(
        request,
        "memory.html",
        tasks=found.tasks[:MOST_SHARES],
        others=len(rest),
        bytes_of_others=sum(task.bytes for task in rest),
        about={(state.queue, state.state) for state in found.states if state.is_about},
        is_about=any(task.is_about for task in found.tasks),
        any_expired=any(task.expired for task in found.tasks[:MOST_SHARES]),
        kind_of=kind_of,
        number_of_messages=number_of_messages,
        of_redis=lambda bytes: of_redis(bytes, found),
        size=size,
        percent=percent,
        remarks=list(remarks(found)),
        read=read.moment,
    )


def work(request: Request) -> Response:
    """How far it is, or how it ended."""
    found = site_of(request).works.get(fields_of(request).get("id", ""))
    if found is None:
        return render(request, "no_work.html", 404)
    return render(request, "work.html", work=found)


async def stop(request: Request) -> Response:
    """End it after the step that it is in."""
    form = await read_ours(request)
    check_may_act(request)
    id = form.text("work")
    found = site_of(request).works.get(id)
    if found is not None and found.in_portions:
        found.stop(request.state.user)
    return RedirectResponse(address(request, "work", id=id), 303)
