"""Tells which message holds a key (lua/include/unique.lua)."""

from __future__ import annotations

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unique import id_in

#: What a key has: state and step, two times, then the name.
_WORDS = 4

#: What separates the parts of what the hashes have for a key.
_PART = b"\x1e"


def holder_of(store: Store, queue: str, field: str) -> str | None:
    """The id of the message of *queue* that holds a key; ``None`` if none does.

    Arguments:
        field: the key as it is in Redis.
    """
    keys = store.keys(queue)
    running = store.server.call("HGET", keys.running, field)
    if running:
        return str(running.rpartition(_PART)[2].decode(errors="replace"))
    current = (store.server.call("HGET", keys.unique, field) or b"").partition(_PART)[0]
    words = current.split(b" ", _WORDS - 1)
    return id_in(words[-1].decode(errors="replace")) or None if len(words) == _WORDS else None
