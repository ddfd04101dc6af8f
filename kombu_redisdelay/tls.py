"""TLS: the options of a connection that uses it, and a check whether a server answers without it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any

#: Seconds to wait for an answer without TLS.
_ANSWER_TIMEOUT = 1.0


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
