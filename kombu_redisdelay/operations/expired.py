"""Estimates how many ready tasks of a queue have expired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from random import randrange

from kombu_redisdelay.broker.fair_keys import is_fair
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.server.replies import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.content import Content, has_expired

#: Messages that are looked at, and how many of them stand side by side.
SAMPLE, TOGETHER = 1000, 5

#: Commands in a round trip.
READS_PER_CALL = 10

#: Bytes that are read at most, without those of the last round trip.
MOST_BYTES = 8 * 1024 * 1024


def expired_share(store: Store, queue: str) -> float:
    """Which part of the ready messages of *queue*, one partition, has expired, about."""
    now_ms, looked_at, expired = store.now_ms(), 0, 0
    for payload in _sample(store, queue):
        looked_at += 1
        expired += has_expired(Content.of(payload, ""), now_ms)
    return expired / looked_at if looked_at else 0.0


def _sample(store: Store, queue: str) -> Iterator[bytes]:
    keys = store.ready_keys(queue)
    lengths = answers(store.server, (("LLEN", key) for key in keys))
    if sum(lengths) <= SAMPLE or is_fair(store, queue):
        size = 0
        for found in islice(ReadyLists(store).iter(queue), SAMPLE):
            yield found.payload
            size += len(found.payload)
            if size > MOST_BYTES:
                return
        return
    size = 0
    for _ in range(SAMPLE // (TOGETHER * READS_PER_CALL)):
        reads = (_random(keys, lengths) for _ in range(READS_PER_CALL))
        commands = [("LRANGE", key, first, first + TOGETHER - 1) for key, first in reads]
        for payloads in answers(store.server, commands):
            yield from payloads
            size += sum(map(len, payloads))
        if size > MOST_BYTES:
            return


def _random(keys: Sequence[str], lengths: Sequence[int]) -> tuple[str, int]:
    """A message: the key of its list, and its index there."""
    index = randrange(sum(lengths))
    for key, length in zip(keys, lengths, strict=True):
        if index < length:
            return key, index
        index -= length
    raise AssertionError("the sum of the lengths is wrong")
