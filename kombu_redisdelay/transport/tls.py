"""TLS: what a connection over it is made with, and whether a server speaks it at all."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any

#: Seconds that a server has for its answer without TLS.
_ANSWER_TIMEOUT = 1.0


def verifying(given: object) -> dict[str, Any]:
    """The options of a connection that verifies the server, unless *given* says otherwise.

    Arguments:
        given: what ``ssl``, or Celery's ``broker_use_ssl``, was set to: options of redis-py, or ``True``.
    """
    options = given if isinstance(given, Mapping) else {}
    cert_reqs = options.get("ssl_cert_reqs", ssl.CERT_REQUIRED)
    # Python does not check the name in a certificate that it does not check.
    check_hostname = cert_reqs not in (ssl.CERT_NONE, "none", None)
    return {"ssl_cert_reqs": cert_reqs, "ssl_check_hostname": check_hostname, **options}


def answers_without(host: str, port: int) -> bool:
    """Whether the Redis at this address answers without TLS. Nothing secret is sent to find that out."""
    try:
        with socket.create_connection((host, port), _ANSWER_TIMEOUT) as connection:
            connection.sendall(b"PING\r\n")
            # A status, such as PONG, or an error, such as that a password is needed.
            return connection.recv(1) in (b"+", b"-")
    except OSError:
        return False
