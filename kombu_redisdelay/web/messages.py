"""The lists of messages, and one message."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.pages import Page, read_page
from kombu_redisdelay.operations.queued import DEAD, HELD, READY, SCHEDULED, QueuedMessage
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.site import ALL, NONE, Site, render, site_of

#: What can be done to messages in each state: name of the action -> what its button says.
ACTIONS = {
    SCHEDULED: {"deliver": "Deliver now", "reschedule": "Reschedule", "cancel": "Cancel"},
    READY: {"cancel": "Cancel"},
    HELD: {},
    DEAD: {"requeue": "Requeue", "remove": "Remove"},
}

#: Those that can be done to all messages of a list at once.
FOR_ALL = {SCHEDULED: ("deliver", "reschedule", "cancel"), READY: (), HELD: (), DEAD: ("requeue", "remove")}

#: What the time of a message is, in each state.
TIMES = {SCHEDULED: "Due", READY: "Waits since", HELD: "Held since", DEAD: "Died"}


def messages(request: Request) -> Response:
    """A page of a list."""
    site, fields = site_of(request), request.query_params
    choice = Choice.of(fields)
    error, page = "", Page([], "", 0)
    try:
        after, before = choice.span(site.timezone)
        page = read_page(
            site.queues,
            choice.state,
            choice.queue or None,
            task=choice.task or None,
            after=after,
            before=before,
            start=fields.get("from", ""),
        )
    except ValueError as exc:
        error = str(exc)
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
        actions={} if site.read_only else ACTIONS[choice.state],
        for_all=FOR_ALL[choice.state],
        call=lambda message: _call(site, message),
    )


def message(request: Request) -> Response:
    """The message, or messages, with one id."""
    site, id = site_of(request), request.query_params.get("id", "").strip()
    found = site.queues.get_all(id) if id else []
    return render(
        request,
        "message.html",
        200 if found else 404,
        id=id,
        found=found,
        actions={} if site.read_only else ACTIONS,
        times=TIMES,
        call=lambda message: _call(site, message),
        payload=lambda message: _payload(site, message),
        headers=lambda message: _headers(site, message),
    )


def _call(site: Site, message: QueuedMessage) -> str:
    """A task with its arguments, as far as they may be seen."""
    if message.task is None:
        return "-"
    if site.arguments == NONE:
        return f"{message.task}(…)"
    args = message.args[1:-1].rstrip(",")
    kwargs = f"**{message.kwargs}" if message.kwargs not in ("", "{}") else ""
    return f"{message.task}({', '.join(filter(None, (args, kwargs)))})"


def _payload(site: Site, message: QueuedMessage) -> str | None:
    return message.payload.decode("utf-8", "backslashreplace") if site.arguments == ALL else None


#: Headers that show the arguments of a task.
_OF_ARGUMENTS = ("argsrepr", "kwargsrepr")


def _headers(site: Site, message: QueuedMessage) -> dict[str, object]:
    hidden = _OF_ARGUMENTS if site.arguments == NONE else ()
    return {name: value for name, value in message.headers.items() if name not in hidden}
