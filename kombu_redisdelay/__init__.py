"""A Kombu transport that keeps countdown and ETA messages in Redis until they are due.

Importing this package registers the URL schemes ``redisdelay`` and ``redisdelays`` with kombu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu_redisdelay import registration

if TYPE_CHECKING:
    from kombu_redisdelay.transport import Transport

__version__ = "0.1.0"
__all__ = ("Transport",)

registration.register()


def __getattr__(name: str) -> Any:
    # Loaded on first use: this package is imported while kombu.serialization still is (see
    # registration), and the transport needs all of kombu.
    if name == "Transport":
        from kombu_redisdelay.transport import Transport

        return Transport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
