"""The lists of messages, and one message."""

from __future__ import annotations

from datetime import datetime, timezone

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.pages import Page, read_page
from kombu_redisdelay.operations.queued import DEAD, HELD, READY, SCHEDULED, QueuedMessage
from kombu_redisdelay.web.actions import ALL, SELECTED, actions_of
from kombu_redisdelay.web.choice import HAVE_TWO_ORDERS, Choice
from kombu_redisdelay.web.events import events_of, relatives_of
from kombu_redisdelay.web.site import ALL_ARGUMENTS, NO_ARGUMENTS, Site, fields_of, render, site_of

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
    return render(
        request,
        "messages.html",
        400 if error else 200,
        choice=choice,
        page=page,
        error=error,
        is_first=not fields.get("from"),
        queues=site.queue_names(),
        total=site.queues.count(choice.queue or None, state=choice.state),
        time=TIMES[choice.state],
        has_two_orders=choice.state in HAVE_TWO_ORDERS,
        is_sorted=is_sorted,
        order=_order(choice, is_sorted),
        of_selected={} if site.read_only else actions_of(choice.state, SELECTED),
        of_all={} if site.read_only or choice.related else actions_of(choice.state, ALL),
        call=lambda message: _call(site, message),
    )


def message(request: Request) -> Response:
    """The message, or messages, with one id."""
    site, id = site_of(request), fields_of(request).get("id", "").strip()
    now = datetime.now(timezone.utc)
    found = site.queues.get_all(id) if id else []
    return render(
        request,
        "message.html",
        200 if found else 404,
        id=id,
        found=found,
        actions=lambda state: {} if site.read_only else actions_of(state, SELECTED),
        events=lambda message: events_of(message, now),
        relatives=relatives_of,
        call=lambda message: _call(site, message),
        payload=lambda message: _payload(site, message),
        headers=lambda message: _headers(site, message),
    )


def _order(choice: Choice, is_sorted: bool) -> str:
    """Says how a list is sorted."""
    orders = ORDERS[choice.state]
    order = orders[1] if choice.is_last_first and orders[1] else orders[0]
    return order if is_sorted else f"Queue by queue, {order[0].lower()}{order[1:]}"


def _call(site: Site, message: QueuedMessage) -> str:
    """A task with its arguments, as far as they may be seen."""
    if message.task is None:
        return "-"
    if site.arguments == NO_ARGUMENTS:
        return f"{message.task}(…)"
    args = message.args[1:-1].rstrip(",")
    kwargs = f"**{message.kwargs}" if message.kwargs not in ("", "{}") else ""
    return f"{message.task}({', '.join(filter(None, (args, kwargs)))})"


def _payload(site: Site, message: QueuedMessage) -> str | None:
    return message.payload.decode("utf-8", "backslashreplace") if site.arguments == ALL_ARGUMENTS else None


#: Headers that show the arguments of a task.
_OF_ARGUMENTS = ("argsrepr", "kwargsrepr")


def _headers(site: Site, message: QueuedMessage) -> dict[str, object]:
    hidden = _OF_ARGUMENTS if site.arguments == NO_ARGUMENTS else ()
    return {name: value for name, value in message.headers.items() if name not in hidden}
