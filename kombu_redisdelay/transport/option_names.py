"""Finds transport options that have no effect, such as misspelt ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from kombu.transport import redis

from kombu_redisdelay.broker.options import Options

logger = logging.getLogger(__name__)

#: The options that kombu 5.5 to 5.7 reads, besides the ``from_transport_options`` of its channels. With an
#: earlier kombu, the options of a later one are accepted, too.
_OF_KOMBU = frozenset(
    (
        # Transports, virtual and redis.
        *("polling_interval", "unacked_restore_interval", "unacked_restore_throttle", "client_name"),
        *("health_check_interval", "reauth_check_interval", "retry_on_error", "retry"),
        *("sentinel_fanout_compat",),
        # Connection.
        *("max_retries", "interval_start", "interval_step", "interval_max", "connect_retries_timeout"),
        *("errback", "callback"),
        # Producer.publish adds its retry policy to the transport options.
        *("on_revive", "retry_errors"),
    )
)

KNOWN = frozenset(
    (
        *Options.__slots__,
        *redis.Channel.from_transport_options,
        *redis.SentinelChannel.from_transport_options,
        *_OF_KOMBU,
    )
)

#: How similar two names must be, from 0 to 1, for one to count as a misspelling of the other.
_ALIKE = 0.8

#: Names that this process has already warned of.
_warned: set[str] = set()


def unknown_options(transport_options: Mapping[str, Any]) -> dict[str, str | None]:
    """Unknown option -> the known option that it resembles, ``None`` if there is no such option."""
    return {name: _nearest(name) for name in transport_options if name not in KNOWN}


def warn_of_misspelt_options(transport_options: Mapping[str, Any]) -> None:
    """Log a warning for each unknown option that resembles a known one, once in each process.

    There is no warning for other unknown options: applications, and tools such as RedBeat, keep their own
    options in the transport options.
    """
    for name, nearest in unknown_options(transport_options).items():
        if nearest is not None and name not in _warned:
            _warned.add(name)
            logger.warning(
                "The transport option %r is unknown, and has no effect. Did you mean %r?", name, nearest
            )


def _nearest(name: str) -> str | None:
    nearest = get_close_matches(name.lower(), sorted(KNOWN), n=1, cutoff=_ALIKE)
    return nearest[0] if nearest else None
