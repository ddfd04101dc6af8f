"""What a fair queue is like at one moment: who holds messages of which key, and what Redis has counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.cluster import RedisCluster

#: All at one moment. The key of a message is read from its headers: that does not depend on what the broker
#: has made of it. The key that never exists keeps the script off a slot that is being moved.
_LOOK = """
local base = string.match(KEYS[1], '^.*}:')
local function keys_of(stored)
  return string.match(stored, '"x%-key": "([^"]*)"') or ''
end
local found = { held = {}, lists = {}, turns = {} }
for _, name in ipairs(redis.call('KEYS', base .. 'unacked:*')) do
  local unacked = redis.call('HGETALL', name)
  for i = 1, #unacked, 2 do
    found.held[string.sub(name, #base + #'unacked:' + 1) .. '\\30' .. unacked[i]] = keys_of(unacked[i + 1])
  end
end
for _, name in ipairs(redis.call('KEYS', base .. '[0-9:]*')) do
  found.lists[(string.gsub(string.sub(name, #base + 1), '^:', '0:'))] = redis.call('LLEN', name)
end
for _, name in ipairs(redis.call('KEYS', base .. 'turns:*')) do
  for _, key in ipairs(redis.call('ZRANGE', name, 0, -1)) do
    table.insert(found.turns, string.sub(name, #base + #'turns:' + 1) .. ':' .. key)
  end
end
for _, name in ipairs({ 'unacked-keys', 'active', 'limited', 'key-limits', 'fair' }) do
  found[name] = redis.call('HGETALL', base .. name)
end
found.alarms = redis.call('ZRANGE', base .. 'alarms', 0, -1)
local time = redis.call('TIME')
found.at = string.format('%d.%06d', time[1], time[2])
found.server = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
found.state = redis.call('HGET', base .. 'control', 'fair')
found.counting = redis.call('HGET', base .. 'control', 'counting')
found.concurrency = redis.call('HGET', base .. 'control', 'key_concurrency')
return cjson.encode(found)
"""


@dataclass(frozen=True)
class FairSample:
    """A fair queue, or a partition of one, at one moment.

    Attributes:
        at: by the server's clock, seconds since the epoch.
        server: which one said so.
        is_fair: whether it is, and all that is unacked is counted.
        held: consumer and delivery tag -> key, of each message that is unacked.
        counted: the same, as far as Redis has counted it.
        active: key -> how many of its messages are counted.
        limited: the keys at a limit.
        alarms: those of them that wait for their rate, and others that have left the turns for that.
        own: key -> since when it is paused, ms since the epoch, 0 if it is not, and its concurrency, 0 if it
            has none.
        concurrency: that of each key; ``None`` if it is not limited.
        waiting: ``<step>:<key>`` of each list that has messages.
        in_turn: ``<step>:<key>`` of each turn.
        is_number_right: whether so many messages are sorted by key as Redis says.
    """

    at: float
    server: str
    is_fair: bool
    held: Mapping[str, str]
    counted: Mapping[str, str]
    active: Mapping[str, int]
    limited: frozenset[str]
    alarms: frozenset[str]
    own: Mapping[str, tuple[int, int]]
    concurrency: int | None
    waiting: frozenset[str]
    in_turn: frozenset[str]
    is_number_right: bool

    def allowed(self, key: str) -> int | None:
        """How many messages of *key* may be unacked; ``None`` for any number."""
        return self.own.get(key, (0, 0))[1] or self.concurrency

    def is_paused(self, key: str) -> bool:
        return self.own.get(key, (0, 0))[0] > 0


def look(client: Redis | RedisCluster, queue: str) -> FairSample:
    """What a queue is like now."""
    keys = [f"redisdelay:{{{queue}}}:{name}" for name in ("control", "never")]
    found: Any = json.loads(client.eval(_LOOK, len(keys), *keys))
    own = {key: tuple(map(float, text.split())) for key, text in _pairs(found["key-limits"]).items()}
    numbers = {name: int(number) for name, number in _pairs(found["fair"]).items() if name.startswith("n:")}
    # An empty table of Lua is an empty object.
    lists = dict(found["lists"])
    lengths: Counter[str] = Counter()
    for name, length in lists.items():
        lengths["n:" + name.partition(":")[0]] += length
    return FairSample(
        float(found["at"]),
        found["server"],
        found["state"] == "on" and not found["counting"],
        dict(found["held"]),
        _pairs(found["unacked-keys"]),
        {key: int(number) for key, number in _pairs(found["active"]).items()},
        frozenset(_pairs(found["limited"])),
        frozenset(found["alarms"]),
        {key: (int(values[0]), int(values[1])) for key, values in own.items()},
        int(found["concurrency"]) if found["concurrency"] else None,
        frozenset(lists),
        frozenset(found["turns"]),
        numbers == dict(lengths),
    )


def _pairs(flat: Any) -> dict[str, str]:
    flat = list(flat)
    return dict(zip(flat[::2], flat[1::2], strict=True))
