"""The page of one queue: its figures, its limits, and what happened in it."""

from __future__ import annotations

from datetime import datetime, timezone
from operator import attrgetter

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.history import queue_history
from kombu_redisdelay.operations.stats import queue_stats
from kombu_redisdelay.operations.timeline import timeline
from kombu_redisdelay.operations.unknown_tasks import unknown_tasks
from kombu_redisdelay.web.actions import actions
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.fields import well_formed
from kombu_redisdelay.web.fleet import last_hour
from kombu_redisdelay.web.overview import coming, totals
from kombu_redisdelay.web.pictures import HOUR, MINUTE, WEEK, happened
from kombu_redisdelay.web.site import fields_of, render, site_of

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
        coming=coming(timeline(store, [name])),
        minutes=happened(history.minutes, delivered, now, MINUTE, HOUR),
        hours=happened(history.hours, delivered, now, HOUR, WEEK),
        last_hour=last_hour(history),
        is_counted=bool(history.hours),
        unknown_tasks=unknown_tasks(store, [name])[:MOST_TASKS],
    )
