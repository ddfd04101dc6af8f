"""The ASGI application, put together."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from kombu_redisdelay.broker.printable import printable
from kombu_redisdelay.operations.errors import BROKER_ERRORS
from kombu_redisdelay.web.confirming import act
from kombu_redisdelay.web.doctor import doctor
from kombu_redisdelay.web.guard import Guard
from kombu_redisdelay.web.messages import message, messages
from kombu_redisdelay.web.overview import overview
from kombu_redisdelay.web.queue import queue
from kombu_redisdelay.web.site import ARGUMENTS, HERE, SHORTENED, Site, render

logger = logging.getLogger(__name__)


def create(
    broker: Any,
    *,
    users: Mapping[str, str] | None = None,
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
        users: name -> password of those who may come. ``None`` or empty: anybody who can reach it, so another
            layer has to ask who it is.
        hosts: the names that requests may ask for in their header ``Host``, as in Starlette's
            ``TrustedHostMiddleware``. Without passwords, a page on another site could else reach one that
            listens on this machine, by a name of its own ("DNS rebinding").
        read_only: whether nothing can be changed.
        arguments: what is shown of the arguments of tasks, which may hold secrets: ``"shortened"`` as Celery
            puts them into the headers, ``"all"`` with the bodies of messages, or ``"none"``.
        title: the name of the page. By default that of the Celery app.

    Raises:
        ValueError: *arguments* is none of these.
    """
    if arguments not in ARGUMENTS:
        raise ValueError(f"arguments must be one of {', '.join(ARGUMENTS)}, not {arguments!r}")
    site = Site(broker, title or str(getattr(broker, "main", None) or "Queues"), read_only, arguments)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        site.close()

    app = Starlette(
        routes=[
            Route("/", overview, name="overview"),
            Route("/queue", queue, name="queue"),
            Route("/messages", messages, name="messages"),
            Route("/message", message, name="message"),
            Route("/act", act, name="act", methods=["POST"]),
            Route("/doctor", doctor, name="doctor"),
            Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
            Middleware(Guard, users=dict(users or {})),
        ],
        exception_handlers={
            HTTPException: _refused,
            **dict.fromkeys(BROKER_ERRORS, _broker_is_away),
        },
        lifespan=lifespan,
    )
    app.state.site = site
    return app


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return render(request, "error.html", error.status_code, what=error.detail, error="")


def _broker_is_away(request: Request, error: Exception) -> Response:
    logger.error("Cannot read the queues: %s", printable(" ".join(str(error).split())))
    return render(request, "error.html", 503, what="Redis does not answer as it should", error=str(error))
