"""A Redis that is full, for certain and for as long as a test wants it."""

from __future__ import annotations

from typing import Any

from tools.harness.process import wait_until

#: Bytes of a key that dominates the memory of the server. What a test frees, and buffers that come and go,
#: are small against it.
BALLAST = 32 * 2**20


def fill(client: Any, room: int = -BALLAST // 4, ballast: str = "ballast") -> None:
    """Give the server a *ballast*, and a ``maxmemory``.

    Arguments:
        room: bytes that it still has for others; below 0, it has to free so many before it accepts any.
    """
    client.config_set("maxmemory", 0)
    # Valkey empties a database in a thread of its own: the ballast of an earlier test would be given back
    # after the look at what is used.
    client.config_set("lazyfree-lazy-user-flush", "no")
    wait_until(lambda: client.info("memory")["lazyfree_pending_objects"] == 0, 30, "memory is given back")
    # Those of a client that has sent a large message are kept for seconds, or until it has gone.
    wait_until(lambda: _buffers(client) < BALLAST // 16, 30, "buffers are given back")
    client.setrange(ballast, BALLAST, "x")
    client.config_set("maxmemory", client.info("memory")["used_memory"] + room)


def _buffers(client: Any) -> int:
    """Bytes that the server keeps for its clients."""
    return sum(int(each.get("tot-mem", 0)) for each in client.client_list())
