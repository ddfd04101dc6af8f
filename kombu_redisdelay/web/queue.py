"""The page of one queue: its figures, its limits, and what happened in it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.history import Period, queue_history
from kombu_redisdelay.operations.stats import queue_stats
from kombu_redisdelay.operations.timeline import timeline
from kombu_redisdelay.operations.unknown_tasks import unknown_tasks
from kombu_redisdelay.web.actions import actions
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.fields import well_formed
from kombu_redisdelay.web.fleet import last_hour
from kombu_redisdelay.web.overview import coming, totals
from kombu_redisdelay.web.pictures import Bar, bars
from kombu_redisdelay.web.site import fields_of, render, site_of

#: How many of the tasks that no worker knows are on the page.
MOST_TASKS = 10


def queue(request: Request) -> Response:
    """One queue."""
    site, name = site_of(request), well_formed(fields_of(request).get("name", ""))
    store, now = site.queues.store, datetime.now(timezone.utc)
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
        minutes=happened(history.minutes, now, timedelta(minutes=1), 60),
        hours=happened(history.hours, now, timedelta(hours=1), 7 * 24),
        last_hour=last_hour(history),
        is_counted=bool(history.hours),
        unknown_tasks=unknown_tasks(store, [name])[:MOST_TASKS],
    )


def happened(periods: Sequence[Period], now: datetime, unit: timedelta, count: int) -> list[Bar]:
    """How much was delivered, as a bar for each of the latest *count* minutes or hours, as *unit* says.
    A period that took longer, because the queue had no maintenance, is where it began."""
    last = int(now.timestamp() // unit.total_seconds())
    delivered = [0] * count
    for period in periods:
        age = last - int(period.start.timestamp() // unit.total_seconds())
        # It may have begun before that, and the server's clock may be ahead of ours.
        delivered[count - 1 - min(max(age, 0), count - 1)] += period.counts.delivered
    begins = (now - (count - 1 - index) * unit for index in range(count))
    form = "%a %H:%M UTC" if unit < timedelta(hours=1) else "%a %H:00 UTC"
    return bars([(f"{begin:{form}}", value) for begin, value in zip(begins, delivered, strict=True)])
