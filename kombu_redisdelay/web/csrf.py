"""Tells the forms of our pages from those that another site has forged."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.requests import Request

#: The name of the cookie, and of the field in each form, that prove that a form came from one of our pages.
TOKEN = "redisdelay_token"


def token_of(request: Request) -> str:
    """The token for the forms of a page. The page has to set it as the cookie :data:`TOKEN`, too."""
    token: str = request.cookies.get(TOKEN, "")
    if not is_signed(token, request.state.key):
        token = getattr(request.state, "token", "")
    if not token:
        seed = secrets.token_urlsafe(32)
        token = request.state.token = f"{seed}.{_signature(request.state.key, seed)}"
    return token


def comes_from_here(request: Request) -> bool:
    """Whether a form may be from one of our pages, by the headers of the browser. The form is not read."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return True
    try:
        scheme, netloc, *_ = urlsplit(origin)
    except ValueError:
        return False
    # Behind a proxy with TLS, our page may be https although the request is not. The reverse is not our page.
    is_less_safe = scheme != "https" and request.url.scheme == "https"
    return netloc == request.headers.get("host") and not is_less_safe


def is_ours(request: Request, fields: Mapping[str, str]) -> bool:
    """Whether a form was sent from one of our pages, by the user of the page: only these pages know the
    token, and only this site gets the cookie. (The "signed double-submit cookie" of OWASP's cheat sheet on
    forged requests.)"""
    cookie = request.cookies.get(TOKEN, "")
    # A form may carry text that is no UTF-8. Our tokens are ASCII.
    is_the_same = secrets.compare_digest(cookie.encode(), fields.get(TOKEN, "").encode(errors="replace"))
    return is_the_same and is_signed(cookie, request.state.key)


def sealed(request: Request, text: str) -> str:
    """*text* with a signature, for a cookie: another site of the same domain may set cookies, too. Only a
    request with the same token can read it."""
    return f"{_signature(request.state.key, _bound(request, text))}.{text}"


def unsealed(request: Request, cookie: str) -> str:
    """The text that :func:`sealed` was given; empty if the signature is wrong."""
    signature, _, text = cookie.partition(".")
    ours = _signature(request.state.key, _bound(request, text))
    return text if secrets.compare_digest(signature.encode(), ours.encode()) else ""


def _bound(request: Request, text: str) -> str:
    return f"{request.cookies.get(TOKEN, '')} {text}"


def is_signed(token: str, key: bytes) -> bool:
    """Whether a token was made for the user with this *key*. Another site may set cookies, too."""
    seed, _, signature = token.partition(".")
    return bool(seed) and secrets.compare_digest(signature.encode(), _signature(key, seed).encode())


def _signature(key: bytes, seed: str) -> str:
    """The signature of a *seed*. Only the pages of one user can make it; without passwords, all pages can."""
    return hmac.digest(key, seed.encode(), "sha256").hex()
