"""Warns of a server that is set to evict keys."""

from __future__ import annotations

import logging

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.server import Server

logger = logging.getLogger(__name__)

#: These policies never evict keys without a time to live. Our keys have none, unless their queue was
#: declared with ``x-expires``.
SAFE_POLICIES = ("noeviction", "volatile-")


def warn_of_eviction(server: Server) -> None:
    """Log a warning if the server may evict queues when it runs out of memory."""
    try:
        policies = [one.info("memory").get("maxmemory_policy", "noeviction") for one in server.servers()]
    except ResponseError:
        return  # This user may not ask.
    for policy in {policy for policy in policies if not policy.startswith(SAFE_POLICIES)}:
        logger.warning(
            "When Redis runs out of memory it may evict queues, with their messages: maxmemory-policy is %s. "
            "Set it to noeviction.",
            policy,
        )
