"""Reads URLs with several addresses of one broker: of its sentinels, or of servers of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kombu.utils.url import url_to_parts, urlparts

#: Between two URLs. This is kombu's.
SEPARATOR = ";"

LOCAL = "127.0.0.1"

#: What may stand in any of the URLs: its name, and a word for it.
_ONCE = {"username": "user", "password": "password", "path": "database"}


class Together(NamedTuple):
    """The content of several URLs.

    Attributes:
        once: username, password and path, as far as any of the URLs has them.
        addresses: hosts and ports, each once.
    """

    once: dict[str, str]
    addresses: tuple[tuple[str, int], ...]


def read(urls: Iterable[str], default_port: int) -> Together:
    """Read *urls*. Each of them may be several, which are joined with ``;``.

    Raises:
        ValueError: they contradict each other, or are not joined with ``;``. No password is in the error.
    """
    parts = [_parts(url) for url in SEPARATOR.join(urls).split(SEPARATOR)]
    once = {}
    for name, word in _ONCE.items():
        values = {getattr(each, name) for each in parts} - {None}
        if len(values) > 1:
            raise ValueError(f"the URLs that are joined say more than one {word}")
        if values:
            once[name] = values.pop()
    return Together(
        once, tuple(dict.fromkeys((each.hostname or LOCAL, each.port or default_port) for each in parts))
    )


def check_host(host: str | None) -> None:
    """
    Raises:
        ValueError: *host* is several hosts.
    """
    if host is not None and "," in host:
        raise ValueError(
            f"the URLs of a broker are joined with {SEPARATOR!r}, not with a comma, and each of them begins "
            "with the scheme"
        )


def _parts(url: str) -> urlparts:
    address = url.rpartition("@")[2]
    # Behind a comma, Python takes the rest for a part of the port.
    check_host(address)
    try:
        return url_to_parts(url)
    except ValueError:
        # Python's error may have a part of the password.
        raise ValueError(
            "a URL has no valid host and port. In the password, write characters that mean something in a "
            "URL as escapes, such as %40 for @"
        ) from None
