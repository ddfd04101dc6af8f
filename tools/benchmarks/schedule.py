"""A schedule with a million messages in seconds, which publishing them would take minutes for."""

from __future__ import annotations

from redis import Redis

from kombu_redisdelay.broker.keys import RedisKeys, redis_keys

_PER_CALL = 2000

# KEYS: schedule, messages. ARGV: the id of the one message that is in both, the due time of the first copy
# in ms, ms from one copy to the next, the number of the first and of the last copy.
_COPY = """
local payload = redis.call('HGET', KEYS[2], ARGV[1])
for n = tonumber(ARGV[4]), tonumber(ARGV[5]) do
  local id = ARGV[1] .. ':' .. n
  redis.call('HSET', KEYS[2], id, payload)
  redis.call('ZADD', KEYS[1], string.format('%.0f', ARGV[2] + n * ARGV[3]), id)
end
"""


def keys(queue: str) -> RedisKeys:
    return redis_keys("", queue, "\x06\x16")


def now_ms(redis: Redis) -> int:
    """The server's time."""
    seconds, microseconds = redis.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def multiply(redis: Redis, queue: str, count: int, first_due_ms: int, step_ms: float) -> None:
    """Make *count* messages of the one that is scheduled in *queue*, with ids of their own and one due
    after the other; take away the one."""
    k = keys(queue)
    ((id_, _),) = redis.zscan_iter(k.schedule)
    copy = redis.register_script(_COPY)
    for first in range(0, count, _PER_CALL):
        last = min(first + _PER_CALL, count) - 1
        copy(keys=[k.schedule, k.messages], args=[id_, first_due_ms, step_ms, first, last])
    redis.zrem(k.schedule, id_)
    redis.hdel(k.messages, id_)
