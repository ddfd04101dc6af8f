"""What the server must be set to."""

from __future__ import annotations

import logging

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.server import Server

logger = logging.getLogger(__name__)

#: Our keys never have a time to live, unless a queue was declared with one: these policies leave them alone.
SAFE_POLICIES = ("noeviction", "volatile-")


def warn_of_eviction(server: Server) -> None:
    """Say in the log so if the server may throw queues away when it runs out of memory."""
    try:
        policy = server.info("memory").get("maxmemory_policy", "noeviction")
    except ResponseError:
        return  # Not everybody may ask.
    if not policy.startswith(SAFE_POLICIES):
        logger.warning(
            "When Redis runs out of memory it may evict queues, with their messages: maxmemory-policy is %s. "
            "Set it to noeviction.",
            policy,
        )
