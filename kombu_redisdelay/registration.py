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


def register() -> None:
    """Register the schemes: ``redisdelay://`` and ``redisdelay-sentinel://``, and those with ``redisdelays``
    for TLS. Calling it again changes nothing."""
    TRANSPORT_ALIASES["redisdelay"] = "kombu_redisdelay.transport:Transport"
    TRANSPORT_ALIASES["redisdelays"] = "kombu_redisdelay.transport:SecureTransport"
    TRANSPORT_ALIASES["redisdelay-sentinel"] = "kombu_redisdelay.transport:SentinelTransport"
    TRANSPORT_ALIASES["redisdelays-sentinel"] = "kombu_redisdelay.transport:SecureSentinelTransport"
