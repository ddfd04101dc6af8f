"""Who may see a page, and who may act: passwords, forged requests, and the headers of every response."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Of whom a request without a password is.
ANYBODY = "anybody"

#: The name of the cookie, and of the field in each form, that prove that a form came from one of our pages.
TOKEN = "redisdelay_token"

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


class Guard:
    """Asks for a password, except at :data:`HEALTH`, and adds the headers that make a browser careful.

    Arguments:
        users: name -> password. If it is empty, anybody may come.
    """

    def __init__(self, app: ASGIApp, users: Mapping[str, str]) -> None:
        self._app = app
        self._users = {name.encode(): password.encode() for name, password in users.items()}

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
        user = self._user(Headers(scope=scope).get("authorization", ""))
        if user is None:
            asks = {"WWW-Authenticate": 'Basic realm="kombu-redisdelay", charset="UTF-8"'}
            response = PlainTextResponse("A name and a password are needed.\n", 401, asks)
            await response(scope, receive, send_guarded)
            return
        scope.setdefault("state", {})["user"] = user
        await self._app(scope, receive, send_guarded)

    def _user(self, authorization: str) -> str | None:
        """Whose request it is; ``None`` if the name or the password is wrong."""
        if not self._users:
            return ANYBODY
        scheme, _, credentials = authorization.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, _, password = base64.b64decode(credentials.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        # An unknown name takes as long as a wrong password.
        expected = self._users.get(name, secrets.token_bytes())
        if not secrets.compare_digest(password, expected):
            return None
        return name.decode("utf-8", "backslashreplace")


def token_of(request: Request) -> str:
    """The token for the forms of a page. The page has to set it as the cookie :data:`TOKEN`, too."""
    token: str = request.cookies.get(TOKEN, "") or getattr(request.state, "token", "")
    if not token:
        token = request.state.token = secrets.token_urlsafe(32)
    return token


def is_ours(request: Request, fields: Mapping[str, str]) -> bool:
    """Whether a form was sent from one of our pages: only they know the token, and only this site gets the
    cookie. (The "double submit" pattern of OWASP's cheat sheet on forged requests.)"""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        return False
    cookie = request.cookies.get(TOKEN, "")
    return bool(cookie) and secrets.compare_digest(cookie.encode(), fields.get(TOKEN, "").encode())
