"""The page of one queue: its figures, its limits, and what happened in it."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.history import Period, queue_history
from kombu_redisdelay.operations.stats import queue_stats
from kombu_redisdelay.operations.timeline import timeline
from kombu_redisdelay.web.actions import ACTIONS
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.fields import well_formed
from kombu_redisdelay.web.overview import coming, last_hour
from kombu_redisdelay.web.pictures import Bar, bars
from kombu_redisdelay.web.site import fields_of, render, site_of


def queue(request: Request) -> Response:
    """One queue."""
    site, name = site_of(request), well_formed(fields_of(request).get("name", ""))
    store = site.queues.store
    [stats] = queue_stats(store, [name])
    [history] = queue_history(store, [name])
    return render(
        request,
        "queue.html",
        queue=stats,
        choice=Choice(queue=name),
        actions=ACTIONS,
        is_known=name in site.queue_names() or store.exists(name),
        coming=coming(timeline(store, [name])),
        minutes=_happened(history.minutes),
        hours=_happened(history.hours),
        last_hour=last_hour(history),
    )


def _happened(periods: Sequence[Period]) -> list[Bar]:
    """How much was delivered in each period."""
    values = [(f"{each.start:%a %H:%M} UTC", each.counts.delivered) for each in periods]
    return bars(values)
