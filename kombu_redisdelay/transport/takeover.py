"""Lets brokers whose URL says ``redis://`` use this transport, in a process that asks for it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from kombu_redisdelay import registration
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.public import public

logger = logging.getLogger(__name__)

#: The schemes that the log has named.
_told: set[str] = set()


@public
def use_for_redis_urls() -> None:
    """Use this transport for the brokers of this process whose URLs begin with ``redis://``, ``rediss://`` or
    ``sentinel://``. Result backends are not touched. The environment variable ``KOMBU_REDISDELAY=redis`` does
    the same.

    Call it before the first connection, in every process: next to the app is a good place. Connections that
    are open stay what they are. Calling it again changes nothing.
    """
    registration.take_over()


def is_taken_over(client: Any) -> bool:
    """Whether *client*, a ``Connection`` of kombu, has such a URL."""
    return client.transport_cls in registration.TAKEN_OVER


def options_of(client: Any) -> Options:
    """Our transport options of *client*. If its URL says ``redis://``, a ``visibility_timeout`` that is
    longer than our default does not count: it was chosen for kombu's transport, where it must be longer than
    any task and any countdown. Here it would only delay the recovery from a crash.

    Raises:
        ValueError: an option has the wrong type or is out of range.
    """
    options = Options.of(client.transport_options)
    if not is_taken_over(client):
        return options
    return replace(options, visibility_timeout=min(options.visibility_timeout, Options().visibility_timeout))


def tell_once(client: Any) -> None:
    """Log that *client* is taken over, once in each process."""
    if is_taken_over(client) and client.transport_cls not in _told:
        _told.add(client.transport_cls)
        logger.info(
            "Brokers with a %s:// URL use kombu-redisdelay in this process (KOMBU_REDISDELAY, or "
            "use_for_redis_urls).",
            client.transport_cls,
        )
