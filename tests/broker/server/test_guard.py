"""The key that keeps a script off a slot which is being moved: of the same slot, and permitted."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from redis.crc import key_slot

from kombu_redisdelay.broker.keys import redis_keys
from kombu_redisdelay.broker.server.cluster import guarded
from kombu_redisdelay.broker.server.scripts import BIND, TAKE

SEPARATOR = "\x06\x16"


@pytest.mark.parametrize("prefix", ["", "shop:", "redisdelay"])
@pytest.mark.parametrize("queue", ["q", "a queue", "{", "a}b", "x{y}z", "q#1"])
def test_it_is_in_the_slot_of_each_key_and_among_those_of_the_queue(prefix: str, queue: str) -> None:
    keys = redis_keys(prefix, queue, SEPARATOR, in_slots=True)
    for key in (keys.ready, keys.ready_at(3), keys.schedule, keys.unacked("me{1}"), keys.history):
        _, _, count, first, guard, *_ = guarded(("EVALSHA", TAKE.sha, 1, key))
        assert (count, first) == (2, key)
        assert key_slot(str(guard).encode()) == key_slot(key.encode())
        assert guard != key
        # As docs/permissions.rst has it.
        permitted = f"{prefix}redisdelay:{{{queue}}}:*"
        assert fnmatchcase(str(guard), permitted.replace("[", "[[]"))


@pytest.mark.parametrize("prefix", ["", "shop:", "redisdelay"])
def test_it_is_among_the_bindings(prefix: str) -> None:
    key = f"{prefix}{{_kombu.binding}}.{{an exchange}}"
    *_, guard = guarded(("EVALSHA", BIND.sha, 1, key))
    assert key_slot(str(guard).encode()) == key_slot(key.encode())
    assert guard != key
    assert fnmatchcase(str(guard), f"{prefix}{{_kombu.binding}}*")
