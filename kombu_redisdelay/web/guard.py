"""Passwords and how many of them can be tried, and the headers of every response."""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any, NamedTuple
from zlib import crc32

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kombu_redisdelay.web.csrf import TOKEN, is_signed
from kombu_redisdelay.web.words import text

#: Wrong passwords that a person may give in a row.
MOST = 10

#: Seconds after which one more may be given.
EVERY_SECONDS = 6.0

#: People that are remembered: memory is bounded. A person that is forgotten begins anew.
MOST_PEOPLE = 10_000

#: People at an address. Beyond that, several names are one person. Otherwise thousands of names from one
#: address could make this forget all others.
MOST_AT_AN_ADDRESS = 256

#: The bits of an IPv6 address that a provider gives a customer. The customer chooses the rest.
_NETWORK_BITS = 64


def person_of(address: str, name: bytes) -> Hashable:
    """The person who gives a password, as far as known: a name, and the network of one customer.

    So guesses at the password of one user do not lock out other users behind the same proxy.
    """
    return _network_of(address), crc32(name) % MOST_AT_AN_ADDRESS


def _network_of(address: str) -> str:
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        # A proxy may pass on anything.
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Network((found, _NETWORK_BITS), strict=False))


class Guesses:
    """Remembers wrong passwords: a token bucket for each person.

    Arguments:
        clock: tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When the bucket of each person is full again. Entries whose bucket is full again are dropped.
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def wait_seconds(self, person: Hashable) -> float:
        """Seconds until a person may try again; 0 if that is now."""
        missing_seconds = self._full_at.get(person, 0.0) - self._clock()
        return max(0.0, missing_seconds - (MOST - 1) * EVERY_SECONDS)

    def was_wrong(self, person: Hashable) -> None:
        """Remember that a person gave a wrong password."""
        now = self._clock()
        self._full_at[person] = max(self._full_at.pop(person, now), now) + EVERY_SECONDS
        if len(self._full_at) > MOST_PEOPLE:
            self._full_at.popitem(last=False)


logger = logging.getLogger(__name__)

#: The viewer of a request without a password.
ANYBODY = "anybody"

#: The address at which an orchestrator asks whether the page is served.
HEALTH = "/healthz"

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class Viewer(NamedTuple):
    """The person who sends a request.

    Attributes:
        name: what the log calls them.
        may_act: whether they may change something, and not only look.
    """

    name: str
    may_act: bool = False


#: Identifies the viewer of a request, or returns the answer that refuses it.
Who = Callable[[Request], Viewer | Response]


class _User(NamedTuple):
    """A user with a password.

    Attributes:
        password: what has to be given.
        may_act: whether they may change something.
        key: what signs the tokens of this user's forms. It is the same in each process that serves the page.
    """

    password: bytes
    may_act: bool
    key: bytes

    @classmethod
    def of(cls, name: bytes, password: bytes, may_act: bool) -> _User:
        # Slow, so that a token does not help to guess the password.
        return cls(
            password, may_act, hashlib.scrypt(password, salt=b"redisdelay_token " + name, n=2**14, r=8, p=1)
        )


class Guard:
    """Asks for a password, except at :data:`HEALTH`, refuses what a page on another site embeds, and adds the
    headers that make a browser careful.

    Arguments:
        users: name -> password of those that may act.
        viewers: name -> password of those that may look. If both are empty, everybody may act.
        who: identifies viewers in place of passwords; ``None`` if there are passwords.
    """

    def __init__(
        self, app: ASGIApp, users: Mapping[str, str], viewers: Mapping[str, str], who: Who | None
    ) -> None:
        self._app = app
        self._users = {
            name.encode(): _User.of(name.encode(), password.encode(), of is users)
            for of in (viewers, users)
            for name, password in of.items()
        }
        self._who = who
        self._guesses = Guesses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if scope["path"] == scope.get("root_path", "") + HEALTH:
            await PlainTextResponse("ok\n")(scope, receive, send_guarded)
            return
        refusal = _refuse_embedding(Headers(scope=scope)) or await self._let_in(scope)
        await (refusal or self._app)(scope, receive, send_guarded)

    async def _let_in(self, scope: Scope) -> Response | None:
        """Note the user of the request. Returns what to answer if there is no user with this password."""
        state = scope.setdefault("state", {})
        state["user"], state["may_act"], state["key"] = ANYBODY, True, b""
        if self._who is not None:
            found = await run_in_threadpool(self._who, Request(scope))
            if not isinstance(found, Viewer):
                return found
            state["user"], state["may_act"] = found
            return None
        return self._ask_for_password(scope, state) if self._users else None

    def _ask_for_password(self, scope: Scope, state: dict[str, Any]) -> Response | None:
        credentials = _credentials(Headers(scope=scope).get("authorization", ""))
        if credentials is None:
            return _ask_again()
        name, password = credentials
        address = scope["client"][0] if scope.get("client") else "an unknown address"
        # An unknown name takes as long as a wrong password.
        user = self._users.get(name, _User(secrets.token_bytes(), False, secrets.token_bytes()))
        token = Request(scope).cookies.get(TOKEN, "")
        # A browser that was let in before is recognised, so that others at its address cannot lock it out.
        # (OWASP's "device cookies".)
        person = token if is_signed(token, user.key) else person_of(address, name)
        wait_seconds = self._guesses.wait_seconds(person)
        if wait_seconds:
            after = {"Retry-After": str(math.ceil(wait_seconds))}
            return PlainTextResponse("Too many wrong passwords. Try again later.\n", 429, after)
        shown = name.decode("utf-8", "backslashreplace")
        if not secrets.compare_digest(password, user.password):
            self._guesses.was_wrong(person)
            logger.warning("A wrong password for the name %s from %s", text(shown, 100), text(address, 100))
            return _ask_again()
        state["user"], state["may_act"], state["key"] = shown, user.may_act, user.key
        return None


def _refuse_embedding(headers: Headers) -> PlainTextResponse | None:
    """Returns what to answer to a request that a page on another site makes by itself, as for an image. Links
    from other sites are allowed. (The "resource isolation policy" of web.dev.)"""
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return None
    if (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document"):
        return None
    return PlainTextResponse("This is not for a page on another site.\n", 403)


def _credentials(authorization: str) -> tuple[bytes, bytes] | None:
    """The name and the password of a header; ``None`` if it has none."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, password = base64.b64decode(credentials.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return name, password


def _ask_again() -> PlainTextResponse:
    asks = {"WWW-Authenticate": 'Basic realm="kombu-redisdelay", charset="UTF-8"'}
    return PlainTextResponse("A name and a password are needed.\n", 401, asks)
