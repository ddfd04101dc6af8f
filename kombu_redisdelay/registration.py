"""Makes the URL schemes known to kombu, without an import in the user's code.

kombu has no entry point for transports. It has one for serializers, ``kombu.serializers``, and loads
everything in that group when :mod:`kombu.serialization` is imported, which Celery does before it
looks at a broker URL. So that is the hook: an entry point named ``redisdelay`` that resolves to
:data:`SERIALIZER`, whose import registers the schemes. What it resolves to must be the arguments of
``kombu.serialization.register`` after the name; with neither encoder nor decoder that call stores a
name and a content type, which nothing ever uses.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

SERIALIZER = (None, None, "application/x-kombu-redisdelay")


def register() -> None:
    """Register ``redisdelay://`` and, over TLS, ``redisdelays://``. Calling it again changes nothing."""
    TRANSPORT_ALIASES["redisdelay"] = "kombu_redisdelay.transport:Transport"
    TRANSPORT_ALIASES["redisdelays"] = "kombu_redisdelay.transport:SecureTransport"
