"""Asks before an action, does it once that is confirmed, and goes back to where the viewer was."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from kombu_redisdelay.operations.fair import checked_key
from kombu_redisdelay.operations.states import STATES
from kombu_redisdelay.operations.viewers import BROKER_ERRORS
from kombu_redisdelay.web.actions import ALL, KEYS, OF_QUEUE, QUEUE, SELECTED, Action, actions
from kombu_redisdelay.web.choice import quoted
from kombu_redisdelay.web.csrf import sealed
from kombu_redisdelay.web.form import BACK, KEY, Form, read_ours
from kombu_redisdelay.web.key_actions import named
from kombu_redisdelay.web.questions import Subject, counted, subject_of
from kombu_redisdelay.web.site import (
    AWAY,
    NOTE,
    Site,
    address,
    check_may_act,
    cookie_path,
    may_act,
    render,
    site_of,
    viewer_of,
)
from kombu_redisdelay.web.words import plural, text
from kombu_redisdelay.web.works import TooMany, Work
from kombu_redisdelay.words import sentence, with_object

logger = logging.getLogger(__name__)

#: A cookie has room for 4096 bytes, and a character may take 12 of them.
_LONGEST_NOTE = 300

#: What a person has written wrongly is written into the form again, so many characters of it.
_LONGEST_WRITTEN = 200

#: What is sent by Enter in a list, without a script.
STAY = "stay"

#: The field that says that the action is also for messages that come meanwhile.
NEWCOMERS = "newcomers"

#: Seconds that a viewer waits for an action before a page shows how far it is.
DIRECT = 1.0


async def act(request: Request) -> Response:
    """Ask whether to do something, or do it."""
    form = await read_ours(request)
    return await site_of(request).turns.search(viewer_of(request), _act, request, form)


def _act(request: Request, form: Form) -> Response:
    site = site_of(request)
    name = form.fields.get("action", "")
    action = actions().get(name)
    if action is not None and not may_act(request):
        audit = {**_audit(request, name, action, form), "outcome": "refused", "failed": True}
        logger.warning("%s: refused", _line(request, name, action, form), extra={"audit": audit})
    check_may_act(request)
    if name == STAY:
        return RedirectResponse(address(request, "messages", **form.choice.fields), 303)
    if action is None or not action.is_offered(form.choice):
        raise HTTPException(400, "There is no such action.")
    if action.about == SELECTED and not form.selected:
        return _back(request, form, action, "No message was selected.")
    if action.about == KEYS and not form.selected:
        return _back(request, form, action, "No key was selected.")
    for each in form.selected if action.about == KEYS else ():
        try:
            checked_key(each.id)
        except ValueError as exc:
            return _back(request, form, action, sentence(str(exc)), **{KEY: each.id[:_LONGEST_WRITTEN]})
    if not form.fields.get("confirmed"):
        return _ask(request, name, action, form)
    if action.about == ALL and _are_more(site, form):
        return _ask(request, name, action, form, "There are more messages than when you were asked.")
    try:
        work = site.works.start(_work(request, name, action, form))
    except ValueError as exc:
        raise HTTPException(400, str(exc)) from exc
    except TooMany as exc:
        raise HTTPException(
            503, "Too much is being done already. Try again when something has ended."
        ) from exc
    if not work.wait(DIRECT):
        return RedirectResponse(address(request, "work", id=work.id), 303)
    site.works.forget(work)
    if isinstance(work.error, ValueError):
        return _ask(request, name, action, form, sentence(str(work.error)))
    if isinstance(work.error, BROKER_ERRORS):
        return render(request, "error.html", 503, what=AWAY, error=work.outcome)
    if work.error is not None:
        raise work.error
    return _back(request, form, action, work.outcome)


def _work(request: Request, name: str, action: Action, form: Form) -> Work:
    page, query = _page(form, action)
    title, expected = action.title_of(form), _expected(form)
    if action.about == ALL and expected is not None:
        # As the question has named them.
        count = plural(expected, form.choice.its_state.described)
        title = with_object(action.title, count) + action.which(form)
    return Work(
        title,
        request.state.user,
        _line(request, name, action, form),
        _audit(request, name, action, form),
        _key(name, action, form),
        partial(_do, action, site_of(request), form),
        expected=expected,
        in_portions=action.about == ALL,
        span=form.choice.span(site_of(request).timezone),
        since=form.choice.its_state.since,
        page=page,
        query=query,
    )


def _key(name: str, action: Action, form: Form) -> Hashable:
    """Two actions with the same key do the same. The same tasks are not requeued at two rates at a time."""
    if action.at_a_rate:
        return name, replace(form.choice, order="")
    return name, form.choice, tuple(form.selected), tuple(_filled_in(action, form).items())


def _filled_in(action: Action, form: Form) -> dict[str, str]:
    """What a person wrote into the fields of the action."""
    return {each.name: form.text(each.name) for each in action.fields if form.text(each.name)}


def _expected(form: Form) -> int | None:
    """How many messages the question was about; ``None`` if that was not known."""
    text = form.text("expected")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


def _are_more(site: Site, form: Form) -> bool:
    """Whether a list has more messages now than the viewer has agreed to."""
    expected = _expected(form)
    if expected is None or form.fields.get(NEWCOMERS):
        return False
    try:
        count = counted(site, form.choice).count
    except ValueError as exc:
        raise HTTPException(400, str(exc)) from exc
    return count is None or count > expected


def _do(action: Action, site: Site, form: Form, work: Work) -> str:
    try:
        return action.do(site, form, work)
    finally:
        # The person wants to see the result.
        site.fleet.forget()
        site.findings.forget()
        site.failures.forget()


def _ask(request: Request, name: str, action: Action, form: Form, error: str = "") -> Response:
    site = site_of(request)
    expected: int | None = None
    subject: Subject | None = None
    try:
        # The list must be the same when it is confirmed: "10m from now" is a later time by then.
        begin = {} if form.fields.get("confirmed") else action.begin(site, form)
        form = Form({**form.fields, **begin}, form.selected, form.choice.fixed(site.timezone))
        span = form.choice.span(site.timezone) if action.about == ALL else (None, None)
        if action.question is not None:
            question = action.question(site, form)
        elif action.about == ALL:
            count = counted(site, form.choice)
            expected = count.count
            question = f"{with_object(action.title, count.text)}{action.which(form)}?"
        else:
            states = (form.choice.state,) if action.needs_state else action.states
            subject = subject_of(site, form, states)
            question = f"{with_object(action.title, plural(subject.count, 'message'))}?"
        staying = action.foresee(site, form)
    except ValueError as exc:
        raise HTTPException(400, str(exc)) from exc
    return render(
        request,
        "confirm.html",
        400 if error else 200,
        name=name,
        action=action,
        question=question,
        staying=staying,
        span=span,
        states=STATES,
        expected=expected,
        newcomers=NEWCOMERS,
        subject=subject,
        keys=list(map(named, form.selected)) if action.about == KEYS else [],
        form=form,
        is_all=action.about == ALL,
        back=_address(request, form, action),
        call=site.call,
        error=error,
    )


def _back(request: Request, form: Form, action: Action, note: str, **more: str) -> Response:
    """Go back to the page, which shows the *note*, and has *more* fields."""
    response = RedirectResponse(_address(request, form, action, **more), 303)
    response.set_cookie(
        NOTE,
        sealed(request, quoted(text(note, _LONGEST_NOTE))),
        max_age=60,
        path=cookie_path(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


def _page(form: Form, action: Action) -> tuple[str, dict[str, str]]:
    """The page to go back to, and its fields. A form cannot name a page of another site."""
    if action.about == QUEUE:
        return "queue", {"name": form.choice.queue}
    if action.about in OF_QUEUE:
        return "keys", {"name": form.choice.queue, **form.view}
    if form.text(BACK):
        return "failed", {"queue": form.choice.queue, "sort": form.text("sort")}
    return "messages", form.choice.fields


def _address(request: Request, form: Form, action: Action, **more: str) -> str:
    page, query = _page(form, action)
    return address(request, page, **query, **more)


def _audit(request: Request, name: str, action: Action, form: Form) -> dict[str, Any]:
    """The same as :func:`_line`, for a program and not shortened."""
    return {
        "user": request.state.user,
        "address": request.client.host if request.client else None,
        "action": name,
        "fields": _filled_in(action, form),
        "messages": [each._asdict() for each in form.selected] if action.about == SELECTED else None,
        "list": None if action.about == SELECTED else {k: v for k, v in form.choice.fields.items() if v},
        **({"keys": [each.id for each in form.selected]} if action.about == KEYS else {}),
    }


def _line(request: Request, name: str, action: Action, form: Form) -> str:
    """The line for the log: the person, and the action."""
    client = request.client.host if request.client else "an unknown address"
    if action.about in OF_QUEUE:
        about = " ".join((f"queue={form.choice.queue}", *(f"key={named(each)}" for each in form.selected)))
    else:
        about = ", ".join(each.id for each in form.selected) or form.choice.query
    filled_in = "".join(f" {field}={value}" for field, value in _filled_in(action, form).items())
    return text(f"{request.state.user} from {client}: {name}{filled_in} {about}")
