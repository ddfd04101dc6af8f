"""The page of a background work."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from kombu_redisdelay.web.form import read_ours
from kombu_redisdelay.web.site import address, check_may_act, fields_of, render, site_of


def work(request: Request) -> Response:
    """How far it is, or how it ended."""
    found = site_of(request).works.get(fields_of(request).get("id", ""))
    if found is None:
        return render(request, "no_work.html", 404)
    return render(request, "work.html", work=found)


async def stop(request: Request) -> Response:
    """End it after the step that it is in."""
    form = await read_ours(request)
    check_may_act(request)
    id = form.text("work")
    found = site_of(request).works.get(id)
    if found is not None and found.in_portions:
        found.stop(request.state.user)
    return RedirectResponse(address(request, "work", id=id), 303)
