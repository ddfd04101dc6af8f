"""Looks for everything that could bite. Finds and advises; printing is somebody else's business."""

from __future__ import annotations

from collections.abc import Sequence

from kombu_redisdelay.channel import Channel
from kombu_redisdelay.doctor.finding import Finding, Level
from kombu_redisdelay.doctor.leftovers import check_leftovers
from kombu_redisdelay.doctor.permissions import check_permissions
from kombu_redisdelay.doctor.queues import check_queues
from kombu_redisdelay.doctor.server import check_server

__all__ = ("Finding", "Level", "examine")


def examine(channel: Channel, queues: Sequence[str]) -> list[Finding]:
    """Check the server of *channel*, what we may do there, and *queues*.

    It leaves nothing behind. Reading is bounded by the number of queues and their consumers, not by what
    is in them.

    Raises:
        redis.exceptions.RedisError: the server cannot be reached, or stopped answering.
    """
    store = channel.store
    return [
        *check_server(store.client),
        *check_permissions(store, channel.keyprefix_fanout),
        *check_leftovers(store, channel.unacked_key, channel.unacked_index_key),
        *check_queues(store, queues, channel.options),
    ]
