"""Asks before an action, does it once that is confirmed, and goes back to where the viewer was."""

from __future__ import annotations

import logging

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from kombu_redisdelay.broker.printable import printable
from kombu_redisdelay.web.actions import ACTIONS, ALL, QUEUE, SELECTED, Action
from kombu_redisdelay.web.fields import quoted
from kombu_redisdelay.web.form import Form, read_form
from kombu_redisdelay.web.guard import is_ours
from kombu_redisdelay.web.site import NOTE, address, cookie_path, render, site_of
from kombu_redisdelay.web.words import text

logger = logging.getLogger(__name__)

#: A cookie has room for 4096 bytes, and a character may take 12 of them.
_LONGEST_NOTE = 300


async def act(request: Request) -> Response:
    """Ask whether to do something, or do it."""
    form = await read_form(request)
    if not is_ours(request, form.fields):
        raise HTTPException(
            403, "This form is not from a page of ours, or it is too old. Go back, and load the page again."
        )
    return await run_in_threadpool(_act, request, form)


def _act(request: Request, form: Form) -> Response:
    site = site_of(request)
    if site.read_only:
        raise HTTPException(403, "Nothing can be changed here: this page is read-only.")
    name = form.fields.get("action", "")
    action = ACTIONS.get(name)
    if action is None or not _is_about(action, form):
        raise HTTPException(400, "There is no such action.")
    if action.about == SELECTED and not form.ids:
        return _back(request, form, action, "No message was selected.")
    if not form.fields.get("confirmed"):
        return _ask(request, name, action, form)
    try:
        done = action.do(site, form)
    except ValueError as exc:
        return _ask(request, name, action, form, str(exc))
    _log(request, name, form, done)
    return _back(request, form, action, done)


def _is_about(action: Action, form: Form) -> bool:
    """Whether an action can be done to what the form is about."""
    if action.about == QUEUE:
        return bool(form.choice.queue)
    # An action on all would be about more than the list shows.
    is_too_much = action.about == ALL and form.choice.related
    return form.choice.state in action.states and not is_too_much


def _ask(request: Request, name: str, action: Action, form: Form, error: str = "") -> Response:
    site = site_of(request)
    try:
        # The list must be the same when it is confirmed: "10m from now" is a later time by then.
        form = Form(form.fields, form.ids, form.choice.fixed(site.timezone))
        question = action.question(site, form)
    except ValueError as exc:
        raise HTTPException(400, str(exc)) from exc
    return render(
        request,
        "confirm.html",
        400 if error else 200,
        name=name,
        action=action,
        question=question,
        form=form,
        is_all=action.about == ALL,
        back=_page(request, form, action),
        error=error,
    )


def _back(request: Request, form: Form, action: Action, note: str) -> Response:
    """Go back to the page, which shows the *note*."""
    response = RedirectResponse(_page(request, form, action), 303)
    response.set_cookie(
        NOTE,
        quoted(text(note, _LONGEST_NOTE)),
        max_age=60,
        path=cookie_path(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


def _page(request: Request, form: Form, action: Action) -> str:
    """The page to go back to. It is one of ours, whatever was sent."""
    if action.about == QUEUE:
        return address(request, "queue", name=form.choice.queue)
    return address(request, "messages", **form.choice.fields)


def _log(request: Request, name: str, form: Form, done: str) -> None:
    client = request.client.host if request.client else "an unknown address"
    about = ", ".join(form.ids) or form.choice.query
    line = f"{request.state.user} from {client}: {name} {about}"
    logger.info("%s: %s", text(line), printable(done))
