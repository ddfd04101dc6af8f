"""Estimates how many ready tasks of a queue have expired."""

from __future__ import annotations

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.content import Content, has_expired
from kombu_redisdelay.operations.queue_bytes import ready_sources
from kombu_redisdelay.operations.sample import sample

#: Messages that are looked at.
SAMPLE = 1000

#: Bytes that are read at most, without those of the last round trip.
MOST_BYTES = 8 * 1024 * 1024


def expired_share(store: Store, queue: str) -> float:
    """Which part of the ready messages of *queue*, one partition, has expired, about."""
    now_ms, looked_at, expired = store.now_ms(), 0, 0
    for found in sample(store, ready_sources(store, queue), SAMPLE, MOST_BYTES):
        looked_at += 1
        expired += has_expired(Content.of(found.stored, ""), now_ms)
    return expired / looked_at if looked_at else 0.0
