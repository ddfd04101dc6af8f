"""The ASGI application, put together."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from kombu_redisdelay.operations.message import ARGUMENTS, SHORTENED
from kombu_redisdelay.operations.viewers import BROKER_ERRORS, TookTooLongError, why
from kombu_redisdelay.web.confirming import act
from kombu_redisdelay.web.failed import failed
from kombu_redisdelay.web.guard import Guard, Who
from kombu_redisdelay.web.keys import keys
from kombu_redisdelay.web.messages import message, messages
from kombu_redisdelay.web.pages import doctor, memory, overview, queue, stop, work
from kombu_redisdelay.web.site import AWAY, HERE, Site, mounted_at, render, site_of, viewer_of
from kombu_redisdelay.web.works import LONGEST_SEARCH

logger = logging.getLogger(__name__)


def create(
    broker: Any,
    *,
    users: Mapping[str, str] | None = None,
    viewers: Mapping[str, str] | None = None,
    who: Who | None = None,
    hosts: Sequence[str] = ("*",),
    read_only: bool = False,
    arguments: str = SHORTENED,
    title: str | None = None,
) -> Starlette:
    """Return an ASGI application that shows the queues of a broker, and lets people act on them.

    It may be mounted below any path of another application. It connects when the first page is asked for, and
    closes its connections at the end of its lifespan, or with ``app.state.site.close()``.

    Arguments:
        broker: a Celery app, a kombu ``Connection``, or a broker URL.
        users: name -> password of those that may look and act.
        viewers: name -> password of those that may only look. Without *users* and *viewers*, everybody that
            can reach the page may act, so another layer has to ask for a password.
        who: identifies the viewer, in place of passwords: takes Starlette's ``Request``, and returns a
            :class:`Viewer`, or a ``Response`` for a person that has no access, such as a redirect to a login.
            It is called in a thread, for each request.
        hosts: the names that requests may ask for in their header ``Host``, as in Starlette's
            ``TrustedHostMiddleware``. Without them and without passwords, a page on another site could reach
            a page on this machine by a name of its own ("DNS rebinding").
        read_only: whether nothing can be changed.
        arguments: what is shown of the arguments of tasks, which may hold secrets: ``"shortened"`` as Celery
            puts them into the headers, ``"all"`` with the bodies of messages, or ``"none"``.
        title: the name of the page. By default that of the Celery app.

    Raises:
        ValueError: *arguments* is none of these; a name is among the *users* and the *viewers*; or *who* is
            given beside passwords.
    """
    users, viewers = dict(users or {}), dict(viewers or {})
    if users.keys() & viewers.keys():
        raise ValueError(f"users and viewers: both have {', '.join(sorted(users.keys() & viewers.keys()))}")
    if who is not None and (users or viewers):
        raise ValueError("give either who, or users and viewers")
    if arguments not in ARGUMENTS:
        raise ValueError(f"arguments must be one of {', '.join(ARGUMENTS)}, not {arguments!r}")
    site = Site(broker, title or str(getattr(broker, "main", None) or "Queues"), read_only, arguments)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        site.close()

    app = Starlette(
        routes=[
            Route("/", _page(overview), name="overview"),
            Route("/queue", _page(queue), name="queue"),
            Route("/keys", _search(keys), name="keys"),
            Route("/messages", _search(messages), name="messages"),
            Route("/failed", _search(failed), name="failed"),
            Route("/message", _search(message), name="message"),
            Route("/act", act, name="act", methods=["POST"]),
            Route("/work", work, name="work"),
            Route("/stop", stop, name="stop", methods=["POST"]),
            Route("/memory", _page(memory), name="memory"),
            Route("/doctor", _page(doctor), name="doctor"),
            Mount("/static", _Files(directory=HERE / "static"), name="static"),
        ],
        middleware=[
            # Before the names of hosts are checked: a health check may ask for any name.
            Middleware(Guard, users=users, viewers=viewers, who=who),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        ],
        exception_handlers={
            HTTPException: _refused,
            TookTooLongError: _took_too_long,
            **dict.fromkeys(BROKER_ERRORS, _broker_is_away),
        },
        lifespan=lifespan,
    )
    # Starlette would write the header Host into the address, and a client can send anything in it.
    app.router.redirect_slashes = False
    app.router.default = _elsewhere
    app.state.site = site
    return app


#: What makes a page.
_Make = Callable[[Request], Response]


def _page(make: _Make) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await site_of(request).turns.page(make, request)

    return endpoint


def _search(make: _Make) -> Callable[[Request], Awaitable[Response]]:
    """A page that may look at every message."""

    async def endpoint(request: Request) -> Response:
        return await site_of(request).turns.search(viewer_of(request), make, request)

    return endpoint


class _Files(StaticFiles):
    """Files that a browser keeps for an hour. Their addresses have our version in them."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "private, max-age=3600"
        return response


async def _elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers addresses without a route, such as that of a mounted application without the slash at its
    end."""
    prefix = scope.get("root_path", "")
    if scope["type"] == "http" and prefix and scope["path"] == prefix:
        await RedirectResponse(f"{mounted_at(scope)}/")(scope, receive, send)
    else:
        await scope["app"].router.not_found(scope, receive, send)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return render(request, "error.html", error.status_code, what=error.detail, error="")


def _took_too_long(request: Request, error: Exception) -> Response:
    what = f"This was not done after {LONGEST_SEARCH:.0f} seconds"
    advice = "Choose a queue, or fewer messages. The command line takes the time that it needs."
    return render(request, "error.html", 503, what=what, error="", advice=advice)


def _broker_is_away(request: Request, error: Exception) -> Response:
    said = why(error)
    logger.error("Cannot read the queues: %s", said)
    return render(request, "error.html", 503, what=AWAY, error=said)
