"""Reads dead letters as they are in Redis, and puts some there, without a worker."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from kombu_redisdelay.broker.keeping import Undeliverable, dead_lettering
from kombu_redisdelay.broker.keys import RedisKeys
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.server.scripts import run_each
from kombu_redisdelay.broker.store import Store

_tags = count(1)


def bury(store: Store, queue: str, payload: str | bytes, reason: str) -> None:
    """Keep the message *payload* as a dead letter with one failure."""
    data = payload.encode() if isinstance(payload, str) else payload
    store.remember(queue)
    message = Undeliverable(queue, f"t{next(_tags)}", reason, data, copy=b"0:" + data, failed_now=True)
    run_each(store.server, [dead_lettering(store, 10_000, "nobody", message, is_limited=False)])


def dead_letters(client: Any, keys: RedisKeys) -> list[bytes]:
    """The dead letters of a queue, the oldest first. Each is a line, ``<when, ms> <failures> <priority step>
    <reason>``, and below it the message."""
    names = client.zrange(keys.dead_index, 0, -1)
    if not names:
        return []
    both = zip(client.hmget(keys.dead_heads, names), client.hmget(keys.dead_messages, names), strict=True)
    return [_text(head, stored) for head, stored in both]


def _text(head: bytes, stored: bytes) -> bytes:
    when_us, failures, _, _, _, details = head.split(b" ", 5)
    step, payload = split_stored(stored)
    reason = json.loads(details)["text"].encode()
    return b"%d %b %d %b\n%b" % (int(when_us) // 1000, failures, step, reason, payload)
