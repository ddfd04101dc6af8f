"""Makes the URL schemes known to kombu, without an import in the user's code.

kombu has no entry point for transports. It has one for serializers, ``kombu.serializers``, and loads
everything in that group when :mod:`kombu.serialization` is imported. Celery imports it before it
looks at a broker URL. So our hook is an entry point named ``redisdelay`` that resolves to
:data:`SERIALIZER`. Loading it imports this package, which registers the schemes. kombu passes its value
to ``kombu.serialization.register``, as the arguments after the name. With neither encoder nor decoder,
that call stores a name and a content type, which nothing ever uses.
"""

from __future__ import annotations

import logging
import os

from kombu.transport import TRANSPORT_ALIASES, _transport_cache

logger = logging.getLogger(__name__)

SERIALIZER = (None, None, "application/x-kombu-redisdelay")


#: What is in a scheme before ``://`` -> the names of the transports, without TLS and with it.
_TRANSPORTS = {
    "": ("Transport", "SecureTransport"),
    "-sentinel": ("SentinelTransport", "SecureSentinelTransport"),
    "-cluster": ("ClusterTransport", "SecureClusterTransport"),
}

#: kombu's own schemes that a process may have us handle -> the names of the transports.
TAKEN_OVER = {"redis": "Transport", "rediss": "SecureTransport", "sentinel": "SentinelTransport"}

#: The environment variable that asks for that, and its only value.
VARIABLE, WANTED = "KOMBU_REDISDELAY", "redis"


def register() -> None:
    """Register the schemes: ``redisdelay://``, ``redisdelay-sentinel://`` and ``redisdelay-cluster://``, and
    those that begin with ``redisdelays`` for TLS. Calling it again changes nothing.

    Raises:
        ValueError: the environment variable has another value.
    """
    for kind, transports in _TRANSPORTS.items():
        for scheme, transport in zip(("redisdelay", "redisdelays"), transports, strict=True):
            TRANSPORT_ALIASES[scheme + kind] = f"kombu_redisdelay.transport:{transport}"
    wanted = os.environ.get(VARIABLE)
    if wanted == WANTED:
        take_over()
    elif wanted:
        raise ValueError(f"the environment variable {VARIABLE} may be {WANTED!r} or empty, not {wanted!r}")


def take_over() -> None:
    """Have brokers with kombu's own schemes use our transports, in this process."""
    for scheme, transport in TAKEN_OVER.items():
        TRANSPORT_ALIASES[scheme] = f"kombu_redisdelay.transport:{transport}"
        # A connection that was only made, and has not connected, looks again.
        before = _transport_cache.pop(scheme, None)
        if before is not None and not before.__module__.startswith(__package__):
            logger.warning(
                "%s:// was used before it became kombu-redisdelay's: connections that were opened before "
                "stay with kombu's transport. Say so earlier: %s=%s, or use_for_redis_urls() first of all.",
                scheme,
                VARIABLE,
                WANTED,
            )
