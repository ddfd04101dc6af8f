"""What every page needs: the broker, what the viewer may do, and the way to render a template."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone, tzinfo
from functools import partial
from math import inf
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from kombu_redisdelay import __version__
from kombu_redisdelay.operations.access import natural
from kombu_redisdelay.operations.dead_letters import DeadLetters
from kombu_redisdelay.operations.delayed import DelayedMessages
from kombu_redisdelay.operations.doctor import Finding, examine
from kombu_redisdelay.operations.queues import Queues
from kombu_redisdelay.web import words
from kombu_redisdelay.web.guard import TOKEN, token_of

HERE = Path(__file__).parent

#: The cookie that carries what was just done to the next page.
NOTE = "redisdelay_note"

#: Seconds for which the findings of the doctor are shown.
FINDINGS_FOR = 30.0

#: What of the arguments of a task is shown.
ARGUMENTS = ALL, SHORTENED, NONE = "all", "shortened", "none"


@dataclass
class Site:
    """The broker of a web page.

    Attributes:
        queues, delayed, dead_letters: the broker. Any number of threads may use them.
        title: what the page is of.
        read_only: whether nothing can be done, only seen.
        arguments: what is shown of the arguments of tasks: "all", "shortened" (as Celery puts them into
            headers) or "none".
    """

    queues: Queues
    delayed: DelayedMessages
    dead_letters: DeadLetters
    title: str
    read_only: bool
    arguments: str
    _examining: Lock = field(default_factory=Lock)
    _examined_at: float = -inf
    _findings: list[Finding] = field(default_factory=list)

    @property
    def timezone(self) -> tzinfo:
        """That of times without an offset."""
        return self.queues.app.timezone if self.queues.app else timezone.utc

    def queue_names(self) -> list[str]:
        """The queues that are known, in natural order."""
        declared = self.queues.app.amqp.queues if self.queues.app else ()
        return sorted({*self.queues.queues(), *declared}, key=natural)

    def close(self) -> None:
        """Close the connections to the broker."""
        for access in (self.queues, self.delayed, self.dead_letters):
            access.close()

    def findings(self) -> list[Finding]:
        """What the doctor finds. It is asked no more often than every :data:`FINDINGS_FOR` seconds: it needs
        some round trips for each queue."""
        with self._examining:
            if self._examined_at + FINDINGS_FOR <= monotonic():
                self._findings = examine(self.queues)
                self._examined_at = monotonic()
            return self._findings


def site_of(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


def address(request: Request, page: str, **query: object) -> str:
    """The address of a page, below the path that the application is mounted at.

    Arguments:
        page: the name of its route.
        query: the fields of the query. Those that are empty or ``None`` are left out. Names of queues and ids
            are among these, because a path cannot have every character.
    """
    there = request.scope.get("root_path", "") + str(request.app.url_path_for(page))
    fields = {field: value for field, value in query.items() if value not in (None, "", [], ())}
    return f"{there}?{urlencode(fields, doseq=True, errors='surrogateescape')}" if fields else there


def static(request: Request, file: str) -> str:
    """The address of a file that a page needs."""
    return f"{request.scope.get('root_path', '')}/static/{file}?{__version__}"


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page."""
    token = token_of(request)
    site = site_of(request)
    html = _templates.get_template(template).render(
        request=request,
        site=site,
        token=token,
        token_name=TOKEN,
        note=words.unquoted(request.cookies.get(NOTE, "")),
        now=datetime.now(timezone.utc),
        version=__version__,
        url=partial(address, request),
        static=partial(static, request),
        **values,
    )
    # Bytes that are no UTF-8 come from Redis as lone surrogates, which no response can carry.
    response = HTMLResponse(html.encode("utf-8", "replace"), status)
    if TOKEN not in request.cookies:
        path = request.scope.get("root_path", "") or "/"
        secure = request.url.scheme == "https"
        response.set_cookie(TOKEN, token, path=path, secure=secure, httponly=True, samesite="strict")
    if NOTE in request.cookies:
        response.delete_cookie(NOTE, path=request.scope.get("root_path", "") or "/")
    return response


_templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters.update(words.FILTERS)
