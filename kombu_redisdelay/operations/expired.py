"""Estimates how many ready tasks of a queue have expired."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import randrange

from kombu_redisdelay.broker.fair_keys import is_fair
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.server.replies import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.content import Content, has_expired

#: Messages that are looked at, in random places, and of how many each place has.
SAMPLE, TOGETHER = 1000, 5

#: Places in a round trip.
PLACES_PER_CALL = 10

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
    for _ in range(SAMPLE // (TOGETHER * PLACES_PER_CALL)):
        places = (_place(keys, lengths) for _ in range(PLACES_PER_CALL))
        commands = [("LRANGE", key, first, first + TOGETHER - 1) for key, first in places]
        for payloads in answers(store.server, commands):
            yield from payloads
            size += sum(map(len, payloads))
        if size > MOST_BYTES:
            return


def _place(keys: list[str], lengths: list[int]) -> tuple[str, int]:
    """A random message: the key of its list, and where it is there."""
    place = randrange(sum(lengths))
    for key, length in zip(keys, lengths, strict=True):
        if place < length:
            return key, place
        place -= length
    raise AssertionError("there is no such place")
