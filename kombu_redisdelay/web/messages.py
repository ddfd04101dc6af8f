"""The lists of messages, and one message."""

from __future__ import annotations

from datetime import datetime, timezone
from math import ceil
from time import monotonic

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.lateness import why_late
from kombu_redisdelay.operations.pages import Page, read_page
from kombu_redisdelay.operations.queued import DEAD, HELD, READY, SCHEDULED, QueuedMessage
from kombu_redisdelay.web.actions import ALL, SELECTED, actions_of
from kombu_redisdelay.web.calls import call_of
from kombu_redisdelay.web.choice import HAVE_TWO_ORDERS, Choice
from kombu_redisdelay.web.events import events_of, relatives_of
from kombu_redisdelay.web.site import ALL_ARGUMENTS, NO_ARGUMENTS, Site, fields_of, render, site_of

#: Seconds after which the page of a message is brought up to date.
UPDATE_AFTER = 5

#: The search for a message may take one in so many parts of the time.
SEARCHES = 50

#: What the time of a message is, in each state.
TIMES = {SCHEDULED: "Due", READY: "Waits since", HELD: "Held since", DEAD: "Died"}

#: What is said of the order of a list, and of the other one if there is one.
ORDERS = {
    SCHEDULED: ("The first one first.", "The last one first."),
    READY: ("In the order in which workers take them.", ""),
    HELD: ("Worker by worker.", ""),
    DEAD: ("The oldest one first.", "The newest one first."),
}


def messages(request: Request) -> Response:
    """A page of a list."""
    site, fields = site_of(request), fields_of(request)
    choice = Choice.of(fields)
    error, page = "", Page([], "", 0)
    try:
        after, before = choice.span(site.timezone)
        page = read_page(
            site.queues,
            choice.state,
            choice.queue or None,
            task=choice.task or None,
            related=choice.related or None,
            after=after,
            before=before,
            last_first=choice.is_last_first,
            start=fields.get("from", ""),
        )
    except ValueError as exc:
        error = str(exc)
    # The other lists come queue by queue.
    is_sorted = choice.state == SCHEDULED or len(site.queues.names(choice.queue or None)) == 1
    is_first = not fields.get("from")
    return render(
        request,
        "messages.html",
        400 if error else 200,
        choice=choice,
        page=page,
        error=error,
        is_first=is_first,
        queues=site.queue_names(),
        total=site.queues.count(choice.queue or None, state=choice.state),
        matching=None if error else _matching(site, choice, page, is_first),
        time=TIMES[choice.state],
        has_two_orders=choice.state in HAVE_TWO_ORDERS,
        is_sorted=is_sorted,
        order=_order(choice, is_sorted),
        of_selected={} if site.read_only else actions_of(choice, SELECTED),
        of_all={} if site.read_only else actions_of(choice, ALL),
        call=lambda message: call_of(site, message),
    )


def message(request: Request) -> Response:
    """The message, or messages, with one id."""
    site, id = site_of(request), fields_of(request).get("id", "")
    now = datetime.now(timezone.utc)
    began = monotonic()
    found = site.queues.get_all(id) if id else []
    if not found and id != id.strip():
        # A person may have copied more than the id.
        id = id.strip()
        found = site.queues.get_all(id) if id else []
    took = monotonic() - began
    return render(
        request,
        "message.html",
        200 if found else 404,
        id=id,
        found=found,
        # Its search may read every ready message. The page must not keep the server busy with that.
        update_after=max(UPDATE_AFTER, ceil(took * SEARCHES)),
        actions=lambda state: {} if site.read_only else actions_of(Choice(state), SELECTED),
        events=lambda message: events_of(message, now),
        relatives=relatives_of,
        why_late=lambda message: why_late(site.queues.store, message),
        call=lambda message: call_of(site, message),
        payload=lambda message: _payload(site, message),
        headers=lambda message: _headers(site, message),
    )


def _matching(site: Site, choice: Choice, page: Page, is_first: bool) -> int | None:
    """How many messages match a filter; ``None`` if there is none, or they would have to be read for it."""
    if not choice.picks_some:
        return None
    if is_first and not page.next:
        return len(page.messages)
    if choice.state != SCHEDULED or choice.task or choice.related:
        return None
    after, before = choice.span(site.timezone)
    return site.delayed.count(choice.queue or None, due_after=after, due_before=before)


def _order(choice: Choice, is_sorted: bool) -> str:
    """Says how a list is sorted."""
    orders = ORDERS[choice.state]
    order = orders[1] if choice.is_last_first and orders[1] else orders[0]
    return order if is_sorted else f"Queue by queue, {order[0].lower()}{order[1:]}"


def _payload(site: Site, message: QueuedMessage) -> str | None:
    return message.payload.decode("utf-8", "backslashreplace") if site.arguments == ALL_ARGUMENTS else None


#: Headers that show the arguments of a task.
_OF_ARGUMENTS = ("argsrepr", "kwargsrepr")


def _headers(site: Site, message: QueuedMessage) -> dict[str, object]:
    hidden = _OF_ARGUMENTS if site.arguments == NO_ARGUMENTS else ()
    return {name: value for name, value in message.headers.items() if name not in hidden}
