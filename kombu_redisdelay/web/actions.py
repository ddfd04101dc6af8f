"""What a person can do: each action says first what it will do to how many, and does it when that is confirmed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from kombu_redisdelay.broker.printable import printable
from kombu_redisdelay.operations.content import is_task
from kombu_redisdelay.operations.moments import parse
from kombu_redisdelay.operations.queued import DEAD, READY
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.guard import is_ours
from kombu_redisdelay.web.site import NOTE, Site, address, render, site_of
from kombu_redisdelay.web.words import plural, quoted

logger = logging.getLogger(__name__)

#: The largest form that is read, in bytes: a page of a list with long ids.
LARGEST_FORM = 1024 * 1024


@dataclass(frozen=True)
class Form:
    """What was sent.

    Attributes:
        fields: name -> value, of fields that are there once.
        ids: the messages that are selected.
    """

    fields: Mapping[str, str]
    ids: Sequence[str]

    @property
    def choice(self) -> Choice:
        return Choice.of(self.fields)


@dataclass(frozen=True)
class Action:
    """Something that can be done.

    Attributes:
        question: what is asked before, for example "Cancel 3 messages?"; it counts.
        button: what the button says that does it.
        do: does it, and says what was done.
        asks: the name of a field that has to be filled in, or nothing.
    """

    question: Callable[[Site, Form], str]
    button: str
    do: Callable[[Site, Form], str]
    asks: str = ""


async def act(request: Request) -> Response:
    """Ask whether to do something, or do it."""
    form = await _form(request)
    return await run_in_threadpool(_act, request, form)


def _act(request: Request, form: Form) -> Response:
    site = site_of(request)
    if not is_ours(request, form.fields):
        raise HTTPException(
            403, "This form did not come from a page of ours, or it is too old. Go back and reload."
        )
    if site.read_only:
        raise HTTPException(403, "This page is read-only.")
    name = form.fields.get("action", "")
    action = ACTIONS.get(name)
    if action is None:
        raise HTTPException(400, "There is no such action.")
    back = _back(request, form)
    if not form.fields.get("confirmed"):
        if name in OF_IDS and not form.ids:
            return _done(request, back, "Nothing was selected.")
        return render(
            request,
            "confirm.html",
            name=name,
            action=action,
            question=action.question(site, form),
            form=form,
            back=back,
            error="",
        )
    try:
        done = action.do(site, form)
    except ValueError as exc:
        return render(
            request,
            "confirm.html",
            400,
            name=name,
            action=action,
            question=action.question(site, form),
            form=form,
            back=back,
            error=str(exc),
        )
    client = request.client.host if request.client else "?"
    logger.info("%s from %s: %s %s", printable(request.state.user), client, _said(name, form), done)
    return _done(request, back, done)


def _done(request: Request, back: str, what: str) -> Response:
    """Go back to the page, which shows *what* was done."""
    response = RedirectResponse(back, 303)
    path = request.scope.get("root_path", "") or "/"
    secure = request.url.scheme == "https"
    response.set_cookie(
        NOTE, quoted(what), max_age=60, path=path, secure=secure, httponly=True, samesite="strict"
    )
    return response


def _back(request: Request, form: Form) -> str:
    """The page to go back to. It is one of ours, whatever was sent."""
    if form.fields.get("of_queue"):
        return address(request, "queue", name=form.fields["of_queue"])
    return address(request, "messages", **form.choice.fields)


async def _form(request: Request) -> Form:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_FORM:
            raise HTTPException(413, "The form is too large.")
    pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, errors="surrogateescape")
    fields = {name: value for name, value in pairs if name != "id"}
    return Form(fields, list(dict.fromkeys(value for name, value in pairs if name == "id")))


def _said(name: str, form: Form) -> str:
    """An action for the log."""
    what = {field: value for field, value in form.choice.fields.items() if value}
    ids = ", ".join(form.ids)
    return printable(f"{name} {ids or what}")[:2000]


#: Messages that are looked at to say how many an action is about.
COUNTED_AT_MOST = 20_000


def _count(site: Site, form: Form) -> str:
    """How many messages a form is about."""
    choice = form.choice
    if form.ids:
        return plural(len(form.ids), "message")
    after, before = choice.span(site.timezone)
    queue = choice.queue or None
    if not choice.task and choice.state == DEAD and not (after or before):
        return plural(site.dead_letters.count(queue), "dead letter")
    if not choice.task and choice.state != DEAD:
        return plural(site.delayed.count(queue, due_after=after, due_before=before), "scheduled message")
    looked_at = found = 0
    for message in site.queues.iter(queue, state=choice.state, after=after, before=before):
        if looked_at == COUNTED_AT_MOST:
            return (
                f"all matching messages, {plural(found, 'message')} of the first {plural(looked_at, 'one')}"
            )
        looked_at += 1
        found += is_task(message.task, choice.task or None)
    return plural(found, "message")


def _of_all(site: Site, form: Form) -> str:
    """Which messages an action for all is about."""
    choice = form.choice
    parts = [f"of {choice.queue}" if choice.queue else "of all queues"]
    parts += [f"of the task {choice.task}"] if choice.task else []
    parts += [f"of {choice.after} or later"] if choice.after else []
    parts += [f"before {choice.before}"] if choice.before else []
    return ", ".join(parts)


def _question(verb: str) -> Callable[[Site, Form], str]:
    def question(site: Site, form: Form) -> str:
        count = _count(site, form)
        return f"{verb} {count}?" if form.ids else f"{verb} {count} {_of_all(site, form)}?"

    return question


def _counted(verb: str, done: Mapping[str, int]) -> str:
    """What was done to some ids, and how many of them were not there any more."""
    count = sum(done.values())
    missing = sum(1 for each in done.values() if each == 0)
    gone = f" {plural(missing, 'id')} had no such message any more." if missing else ""
    return f"{verb} {plural(count, 'message')}.{gone}"


def _when(site: Site, form: Form) -> dict[str, object]:
    """The new time of messages, as the API wants it."""
    text = form.fields.get("time", "").strip()
    try:
        time = parse(text, site.timezone)
    except ValueError as exc:
        raise ValueError(f"New time: {exc}") from exc
    return {"eta": time} if isinstance(time, datetime) else {"countdown": time.total_seconds()}


def _picked(site: Site, form: Form) -> dict[str, object]:
    """The arguments that pick all scheduled messages of a choice."""
    choice = form.choice
    after, before = choice.span(site.timezone)
    return {
        "queue": choice.queue or None,
        "task": choice.task or None,
        "due_after": after,
        "due_before": before,
    }


def _picked_dead(site: Site, form: Form) -> dict[str, object]:
    """The same for dead letters."""
    choice = form.choice
    after, before = choice.span(site.timezone)
    return {"queue": choice.queue or None, "task": choice.task or None, "after": after, "before": before}


def _cancel(site: Site, form: Form) -> str:
    return _counted("Cancelled", site.queues.cancel_many(form.ids))


def _cancel_all(site: Site, form: Form) -> str:
    return f"Cancelled {plural(site.delayed.purge(**_picked(site, form)), 'message')}."


def _deliver(site: Site, form: Form) -> str:
    return _counted("Delivered", site.delayed.deliver_now_many(form.ids))


def _deliver_all(site: Site, form: Form) -> str:
    return f"Delivered {plural(site.delayed.deliver_now_all(**_picked(site, form)), 'message')}."


def _reschedule(site: Site, form: Form) -> str:
    return _counted("Rescheduled", site.delayed.reschedule_many(form.ids, **_when(site, form)))


def _reschedule_all(site: Site, form: Form) -> str:
    count = site.delayed.reschedule_all(**_picked(site, form), **_when(site, form))
    return f"Rescheduled {plural(count, 'message')}."


def _requeue(site: Site, form: Form) -> str:
    return _counted("Requeued", site.dead_letters.requeue_many(form.ids))


def _requeue_all(site: Site, form: Form) -> str:
    return f"Requeued {plural(site.dead_letters.requeue_all(**_picked_dead(site, form)), 'dead letter')}."


def _remove(site: Site, form: Form) -> str:
    return _counted("Removed", site.dead_letters.remove_many(form.ids))


def _remove_all(site: Site, form: Form) -> str:
    return f"Removed {plural(site.dead_letters.purge(**_picked_dead(site, form)), 'dead letter')}."


def _queue_of(form: Form) -> str:
    queue = form.fields.get("of_queue", "")
    if not queue:
        raise HTTPException(400, "No queue was given.")
    return queue


def _ask_pause(site: Site, form: Form) -> str:
    queue = _queue_of(form)
    ready = site.queues.count(queue, state=READY)
    return f"Pause {queue} for all workers? It has {plural(ready, 'ready message')}. What workers have taken, they run."


def _pause(site: Site, form: Form) -> str:
    site.queues.pause(_queue_of(form))
    return f"{_queue_of(form)} is paused."


def _ask_resume(site: Site, form: Form) -> str:
    queue = _queue_of(form)
    return f"Let workers take from {queue} again? It has {plural(site.queues.count(queue, state=READY), 'ready message')}."


def _resume(site: Site, form: Form) -> str:
    site.queues.resume(_queue_of(form))
    return f"{_queue_of(form)} is not paused any more."


def _ask_limit(site: Site, form: Form) -> str:
    queue = _queue_of(form)
    return f"Limit what all workers together take from {queue}? Its present limits are replaced."


def _limit(site: Site, form: Form) -> str:
    queue, fields = _queue_of(form), form.fields
    rate = fields.get("rate", "").strip() or None
    site.queues.limit(
        queue,
        rate=rate,
        burst=_whole("Burst", fields.get("burst", "")),
        concurrency=_whole("Concurrency", fields.get("concurrency", "")),
    )
    return (
        f"{queue} is limited."
        if site.queues.control(queue).is_limited
        else f"{queue} has no limits any more."
    )


def _whole(name: str, text: str) -> int | None:
    """A whole number that a person wrote; ``None`` if they wrote nothing."""
    text = text.strip()
    if text and not text.isdecimal():
        raise ValueError(f"{name}: {text!r} is not a whole number.")
    return int(text) if text else None


ACTIONS: dict[str, Action] = {
    "cancel": Action(_question("Cancel"), "Cancel them", _cancel),
    "cancel-all": Action(_question("Cancel"), "Cancel them all", _cancel_all),
    "deliver": Action(_question("Deliver now"), "Deliver them now", _deliver),
    "deliver-all": Action(_question("Deliver now"), "Deliver them all now", _deliver_all),
    "reschedule": Action(_question("Reschedule"), "Reschedule them", _reschedule, asks="time"),
    "reschedule-all": Action(_question("Reschedule"), "Reschedule them all", _reschedule_all, asks="time"),
    "requeue": Action(_question("Requeue"), "Requeue them", _requeue),
    "requeue-all": Action(_question("Requeue"), "Requeue them all", _requeue_all),
    "remove": Action(_question("Remove for good"), "Remove them", _remove),
    "remove-all": Action(_question("Remove for good"), "Remove them all", _remove_all),
    "pause": Action(_ask_pause, "Pause", _pause),
    "resume": Action(_ask_resume, "Resume", _resume),
    "limit": Action(_ask_limit, "Limit", _limit, asks="limit"),
}

#: Those that are about selected messages.
OF_IDS = ("cancel", "deliver", "reschedule", "requeue", "remove")
