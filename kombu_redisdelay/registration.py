"""Makes the URL schemes known to kombu, without an import in the user's code.

kombu has no entry point for transports. It has one for serializers, ``kombu.serializers``, and loads
everything in that group when :mod:`kombu.serialization` is imported. Celery imports it before it
looks at a broker URL. So our hook is an entry point named ``redisdelay`` that resolves to
:data:`SERIALIZER`. Loading it imports this package, which registers the schemes. kombu passes its value
to ``kombu.serialization.register``, as the arguments after the name. With neither encoder nor decoder,
that call stores a name and a content type, which nothing ever uses.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

SERIALIZER = (None, None, "application/x-kombu-redisdelay")


#: What is in a scheme before ``://`` -> the names of the transports, without TLS and with it.
_TRANSPORTS = {
    "": ("Transport", "SecureTransport"),
    "-sentinel": ("SentinelTransport", "SecureSentinelTransport"),
    "-cluster": ("ClusterTransport", "SecureClusterTransport"),
}


def register() -> None:
    """Register the schemes: ``redisdelay://``, ``redisdelay-sentinel://`` and ``redisdelay-cluster://``, and
    those that begin with ``redisdelays`` for TLS. Calling it again changes nothing."""
    for kind, transports in _TRANSPORTS.items():
        for scheme, transport in zip(("redisdelay", "redisdelays"), transports, strict=True):
            TRANSPORT_ALIASES[scheme + kind] = f"kombu_redisdelay.transport:{transport}"
