"""How a broker is reached: URLs with several addresses of it, and TLS.

The addresses are those of its sentinels, or of servers of a cluster.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kombu.utils.url import url_to_parts, urlparts

#: Between two URLs. This is kombu's.
SEPARATOR = ";"

LOCAL = "127.0.0.1"

#: What may stand in any of the URLs: its name, and a word for it.
_ONCE = {"username": "user", "password": "password", "path": "database"}

#: Seconds to wait for an answer without TLS.
_ANSWER_TIMEOUT = 1.0


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


def verifying(given: object) -> dict[str, Any]:
    """Return the TLS options of a connection. By default, they verify the certificate and its host name.

    Arguments:
        given: the value of ``ssl``, or of Celery's ``broker_use_ssl``: options of redis-py, or ``True``. Its
            options take precedence.
    """
    options = given if isinstance(given, Mapping) else {}
    cert_reqs = options.get("ssl_cert_reqs", ssl.CERT_REQUIRED)
    # Python cannot check the host name without checking the certificate.
    check_hostname = cert_reqs not in (ssl.CERT_NONE, "none", None)
    return {"ssl_cert_reqs": cert_reqs, "ssl_check_hostname": check_hostname, **options}


def is_unverified(options: Mapping[str, Any]) -> bool:
    """Whether a connection with these options uses TLS without verifying the server."""
    return "ssl_cert_reqs" in options and options["ssl_cert_reqs"] in (ssl.CERT_NONE, "none", None)


def answers_without(host: str, port: int) -> bool:
    """Whether a Redis at this address answers without TLS. This sends no password, and nothing else that is
    secret."""
    try:
        with socket.create_connection((host, port), _ANSWER_TIMEOUT) as connection:
            connection.sendall(b"PING\r\n")
            # `+` is a status such as PONG, `-` an error, for instance that a password is needed.
            return connection.recv(1) in (b"+", b"-")
    except OSError:
        return False


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
