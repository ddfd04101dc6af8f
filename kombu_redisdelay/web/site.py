"""What every page needs: the broker, what the viewer may do, and the way to render a template."""

from __future__ import annotations

from datetime import datetime, timezone, tzinfo
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import Scope

from kombu_redisdelay import __version__
from kombu_redisdelay.operations.access import natural
from kombu_redisdelay.operations.doctor import Finding, examine
from kombu_redisdelay.operations.filters import FILTERS, Filter
from kombu_redisdelay.operations.history import Counts
from kombu_redisdelay.operations.memory_report import MemoryUse
from kombu_redisdelay.operations.message import ALL, MessageInfo, call, with_arguments, without_empty_headers
from kombu_redisdelay.operations.messages import Messages
from kombu_redisdelay.operations.queues import Queues
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.viewers import Cached
from kombu_redisdelay.web import words
from kombu_redisdelay.web.choice import Choice, of_query, quoted, to_query, unquoted
from kombu_redisdelay.web.csrf import TOKEN, token_of, unsealed
from kombu_redisdelay.web.fleet import (
    Failures,
    Fleet,
    read_failures,
    read_fleet,
    read_hours,
    seconds_kept,
)
from kombu_redisdelay.web.guard import ANYBODY
from kombu_redisdelay.web.works import Turns, Works

HERE = Path(__file__).parent

#: What a page says that cannot be shown.
AWAY = "Redis does not answer as it should"

#: The cookie that carries what was just done to the next page.
NOTE = "redisdelay_note"

#: Seconds that the findings of the doctor are shown at least. They are shown twenty times as long as it took
#: to find them.
FINDINGS_FOR, TIMES_AS_LONG = 30.0, 20.0

#: The same for what fills Redis.
MEMORY_FOR = 15.0

#: With more queues than this, a viewer writes the name of one.
MOST_QUEUES = 500

#: With more queues than this, only the page of the doctor asks the doctor: it takes seconds.
MOST_EXAMINED = 500


class Site:
    """The broker of a web page. It is opened when the first page is asked for: an application that shows the
    page may start while Redis is away, and may fork after that.

    Arguments:
        broker: as for :class:`~kombu_redisdelay.operations.access.Access`.

    Attributes:
        title: what the page is of.
        read_only: whether nothing can be done, only seen.
        arguments: what is shown of the arguments of tasks, one of
            :data:`~kombu_redisdelay.operations.message.ARGUMENTS`.
        findings: what the doctor finds.
        memory: what fills Redis.
        fleet: the figures of all queues.
        hours: what has happened in each queue in the last hour.
        failures: what has failed in all queues.
        works: what is done in the background.
        turns: bounds what is done at a time.
    """

    def __init__(self, broker: Any, title: str, read_only: bool, arguments: str) -> None:
        self.title = title
        self.read_only = read_only
        self.arguments = arguments
        self.works = Works()
        self.turns = Turns()
        self._broker = broker
        self._opening = Lock()
        self._messages: Messages | None = None
        self.findings: Cached[list[Finding]] = Cached(
            # The page may have a Redis user of its own, which needs fewer permissions than workers.
            lambda: examine(self.queues, with_permissions=False),
            lambda _, took: max(FINDINGS_FOR, TIMES_AS_LONG * took),
        )
        self.memory: Cached[MemoryUse] = Cached(
            lambda: self.messages.memory(), lambda _, took: max(MEMORY_FOR, TIMES_AS_LONG * took)
        )
        self.fleet: Cached[Fleet] = Cached(
            lambda: read_fleet(self.queues.store, self.queue_names()),
            lambda fleet, took: seconds_kept(len(fleet.stats), took),
        )
        self.hours: Cached[dict[str, Counts]] = Cached(
            lambda: read_hours(self.queues.store, self.queue_names()),
            lambda hours, took: seconds_kept(len(hours), took),
        )
        self.failures: Cached[Failures] = Cached(
            lambda: read_failures(self.messages, self.queue_names()),
            lambda failures, took: seconds_kept(max(failures.queues, len(failures.groups)), took),
        )

    # Any number of threads may use them.
    @property
    def messages(self) -> Messages:
        with self._opening:
            if self._messages is None:
                self._messages = Messages(self._broker)
            return self._messages

    @property
    def queues(self) -> Queues:
        return Queues(self.messages)

    @property
    def timezone(self) -> tzinfo:
        """The time zone of times without an offset."""
        return self.queues.app.timezone if self.queues.app else timezone.utc

    def shown(self, message: MessageInfo) -> MessageInfo:
        """The message with what a viewer may see of its arguments, and the headers that say something."""
        return without_empty_headers(with_arguments(message, self.arguments))

    def call(self, message: MessageInfo) -> str:
        """A task with its arguments, as far as a viewer may see them."""
        return call(self.shown(message))

    @property
    def filters(self) -> list[Filter]:
        """The filters that a viewer may use. A filter by argument would reveal hidden arguments letter by
        letter."""
        return [each for each in FILTERS if self.arguments == ALL or not each.reads_arguments]

    def selection_of(self, choice: Choice) -> Selection:
        """What *choice* selects.

        Raises:
            ValueError: a time of it is no time, or it has a filter that a viewer may not use.
        """
        allowed = {each.name for each in self.filters}
        for name, _ in choice.filters:
            if name not in allowed:
                raise ValueError(
                    f"{name.capitalize()}: this page does not show all arguments (--show-arguments all)"
                )
        return choice.selection(self.timezone)

    def queue_names(self) -> list[str]:
        """The queues that are known, in natural order."""
        return sorted({*self.queues.queues(), *self.queues.declared_queues}, key=natural)

    def is_known(self, queue: str) -> bool:
        """Whether *queue* was used, or the app declares it."""
        return self.queues.store.exists(queue) or queue in self.queue_names()

    def close(self) -> None:
        """Stop what is done in the background, and close the connections to the broker. The next page opens
        them again."""
        self.works.stop()
        with self._opening:
            if self._messages is not None:
                self._messages.close()
            self._messages = None


def site_of(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


def viewer_of(request: Request) -> str:
    """The name of the viewer. Without passwords, it has the address."""
    user: str = request.state.user
    return user if user != ANYBODY or request.client is None else f"{user} at {request.client.host}"


def may_act(request: Request) -> bool:
    """Whether the viewer may change something."""
    return bool(request.state.may_act) and not site_of(request).read_only


def check_may_act(request: Request) -> None:
    """
    Raises:
        HTTPException: the viewer may change nothing.
    """
    if site_of(request).read_only:
        raise HTTPException(403, "Nothing can be changed here: this page is read-only.")
    if not may_act(request):
        raise HTTPException(403, "You may look at this page, and change nothing.")


def fields_of(request: Request) -> dict[str, str]:
    """The fields of the address."""
    return dict(of_query(request.scope["query_string"].decode("latin-1")))


def mounted_at(scope: Scope) -> str:
    """The path that the application is mounted at, as an address has it; empty if it is not mounted."""
    # A path with a parameter holds what a client has sent. It must not become the name of a host.
    path = str(scope.get("root_path", "")).lstrip("/")
    return f"/{quoted(path)}" if path else ""


def cookie_path(request: Request) -> str:
    """The path that our cookies are for."""
    return mounted_at(request.scope) or "/"


def address(request: Request, page: str, /, **query: str) -> str:
    """The address of a page, below the path that the application is mounted at.

    Arguments:
        page: the name of its route.
        query: the fields of the query. Those that are empty are left out. Names of queues and ids are among
            these, because a path cannot have every character.
    """
    there = mounted_at(request.scope) + str(request.app.url_path_for(page))
    fields = to_query(query)
    return f"{there}?{fields}" if fields else there


def static(request: Request, file: str) -> str:
    """The address of a file that a page needs."""
    return f"{mounted_at(request.scope)}/static/{file}?{__version__}"


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page."""
    token = token_of(request)
    site = site_of(request)
    html = _templates.get_template(template).render(
        request=request,
        site=site,
        token=token,
        may_act=may_act(request),
        token_name=TOKEN,
        note=unquoted(unsealed(request, request.cookies.get(NOTE, ""))),
        now=datetime.now(timezone.utc),
        version=__version__,
        url=partial(address, request),
        static=partial(static, request),
        **values,
    )
    # Bytes that are no UTF-8 come from Redis as lone surrogates, which no response can carry.
    response = HTMLResponse(html.encode("utf-8", "replace"), status)
    if request.cookies.get(TOKEN) != token:
        response.set_cookie(
            TOKEN,
            token,
            path=cookie_path(request),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
    if NOTE in request.cookies:
        response.delete_cookie(NOTE, path=cookie_path(request))
    return response


_templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters.update(words.FILTERS)
_templates.tests["linkable"] = words.is_linkable
