"""The consumers that have a lease in a queue, and whether any of their processes still exists."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from kombu_redisdelay.broker.processes import has_ended, process_of
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store


def with_lease(store: Store, names: Collection[str]) -> dict[str, list[bytes]]:
    """Queue or partition -> the consumers whose lease lasts."""
    now_ms = store.now_ms()
    commands = (("ZRANGEBYSCORE", store.keys(name).consumers, now_ms, "+inf") for name in names)
    return dict(zip(names, answers(store.server, commands), strict=True))


def deserted(store: Store, names: Collection[str]) -> set[str]:
    """The queues and partitions whose consumers were all processes of this machine that have ended. Their
    leases last for a while."""
    if not names:
        return set()
    is_over = cache(has_ended)
    return {
        name
        for name, some in with_lease(store, names).items()
        if some and all(is_over(process_of(consumer.decode(errors="replace"))) for consumer in some)
    }
