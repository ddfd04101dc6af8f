"""The page of failed tasks: of which kinds they are, and how many there were of late."""

from __future__ import annotations

from datetime import datetime, timezone
from operator import attrgetter

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.failed_tasks import FailureGroup
from kombu_redisdelay.operations.filters import NOT_RETURNED
from kombu_redisdelay.operations.states import FAILED
from kombu_redisdelay.web.actions import ALL, actions_of
from kombu_redisdelay.web.choice import LAST_FIRST, Choice, well_formed
from kombu_redisdelay.web.fleet import Part, read_failures
from kombu_redisdelay.web.form import BACK
from kombu_redisdelay.web.pictures import DAY, HOUR, MINUTE, WEEK, happened
from kombu_redisdelay.web.site import MOST_QUEUES, address, fields_of, render, site_of
from kombu_redisdelay.web.sorting import Column, Sorting
from kombu_redisdelay.web.words import pattern

#: The columns of a group. The kinds that have failed last are of most use.
COLUMNS = (
    Column("task", "Task", attrgetter("task", "error"), largest_first=False),
    Column("error", "Error", attrgetter("error"), largest_first=False),
    Column("returned", "Returned", attrgetter("returned"), largest_first=False),
    Column("count", "Failed", attrgetter("count")),
    Column("first", "First", attrgetter("first")),
    Column("last", "Last", attrgetter("last")),
)


def failed(request: Request) -> Response:
    """Failed tasks by task and exception, of all queues or of one."""
    site, fields = site_of(request), fields_of(request)
    name = well_formed(fields.get("queue", ""))
    sorting = Sorting.of(fields.get("sort", ""), COLUMNS, "-last")
    found = read_failures(site.messages, [name]) if name else site.failures.get().value
    part = Part.of(fields.get("page", ""), len(found.groups))
    now, number = datetime.now(timezone.utc), attrgetter("failed")
    shown = {"queue": name, "sort": sorting.field}
    every = Choice(FAILED, name)
    apart = {(group.task, group.error) for group in found.groups if group.returned}
    return render(
        request,
        "failed.html",
        groups=[
            (group, choice_of(name, group, is_apart=(group.task, group.error) in apart))
            for group in sorting.sort(found.groups)[part.slice]
        ],
        kinds=sum(not group.returned for group in found.groups),
        total=sum(group.count for group in found.groups if not group.returned),
        returned=sum(group.count for group in found.groups if group.returned),
        part=part,
        columns=COLUMNS,
        sorting=sorting,
        here=lambda **query: address(request, "failed", **{**shown, **query}),
        queue=name,
        queues=site.queue_names(),
        most_queues=MOST_QUEUES,
        every=every,
        hour=happened(found.minutes, number, now, MINUTE, HOUR),
        day=happened(found.hours, number, now, HOUR, DAY),
        week=happened(found.hours, number, now, HOUR, WEEK),
        actions=actions_of(request, every, ALL),
        back=BACK,
    )


def choice_of(queue: str, group: FailureGroup, is_apart: bool = False) -> Choice:
    """The failed tasks of a group, the newest first.

    Arguments:
        is_apart: whether others have this task and error, some of which are known to have returned.
    """
    filters = [("task", pattern(group.task)), ("error", pattern(group.error))]
    if is_apart:
        filters.append(("returned", group.returned or NOT_RETURNED))
    return Choice(FAILED, queue, tuple(filters), order=LAST_FIRST)
