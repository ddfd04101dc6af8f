"""Warns of a server that is set to evict keys."""

from __future__ import annotations

import logging

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.server import Server

logger = logging.getLogger(__name__)


def evicted_by(policy: str) -> str:
    """What a server with this ``maxmemory-policy`` evicts of our data when it runs out of memory, in words;
    empty if it evicts nothing."""
    if policy == "noeviction":
        return ""
    if policy.startswith("volatile-"):
        # Only what has a time to live. Of other keys with one, none is missed (docs/design-notes.rst).
        return "queues that were declared with x-expires, with their messages,"
    return "queues, with their messages,"


def warn_of_eviction(server: Server) -> None:
    """Log a warning if the server may evict queues when it runs out of memory."""
    try:
        policies = {one.info("memory").get("maxmemory_policy", "noeviction") for one in server.servers()}
    except ResponseError:
        return  # This user may not ask.
    for policy in filter(evicted_by, policies):
        logger.warning(
            "When Redis runs out of memory, %s may be thrown away: maxmemory-policy is %s. "
            "Set it to noeviction.",
            evicted_by(policy),
            policy,
        )
