"""Reads a broker URL with several addresses of one broker: of its sentinels, or of servers of a cluster."""

from __future__ import annotations

from typing import Any

from kombu.utils.url import url_to_parts, urlparts

from kombu_redisdelay.broker.server.nodes import Address

#: Between two URLs. This is kombu's.
SEPARATOR = ";"

_LOCAL = "127.0.0.1"

#: What may stand in any of the URLs: its name in a URL -> its name in a ``Connection`` of kombu, and a word.
_ONCE = {
    "username": ("userid", "user"),
    "password": ("password", "password"),
    "path": ("virtual_host", "database"),
}


def read_together(client: Any, default_port: int) -> tuple[Address, ...]:
    """The addresses in the URLs of *client*, a ``Connection`` of kombu, each once.

    kombu reads the first URL, and takes each of the others for another broker: when it cannot connect, it
    goes on to the next one, and Celery logs an error for each. Here, all of them are one broker. So
    afterwards, *client* has what any of them says, and is not led to another one.

    Raises:
        ValueError: the URLs contradict each other, or are not joined with ``;``. No password is in the error.
    """
    if not client.alt:
        return (Address(client.hostname or _LOCAL, client.port or default_port),)
    together = SEPARATOR.join(client.alt)
    urls = [_parts(url) for url in together.split(SEPARATOR)]
    for part, (name, word) in _ONCE.items():
        values = {getattr(url, part) for url in urls} - {None}
        if len(values) > 1:
            raise ValueError(f"the URLs that are joined in the broker URL say more than one {word}")
        if values:
            setattr(client, name, values.pop())
    # One alternate: then kombu waits after each failure, and not only after one for each URL.
    client.alt, client.cycle = [together], None
    return tuple(dict.fromkeys(Address(url.hostname or _LOCAL, url.port or default_port) for url in urls))


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
    return url_to_parts(url)
