-- Keeps the names of the queues that are in use, so that operations on all queues find them.
--
-- KEYS[1]  known queues
-- ARGV[1]  a queue that was not noted for so long is unused, ms
-- ARGV[2]  how many unused queues to name at most
-- ARGV[3]  how many of the queues that follow are forgotten, unless they were noted meanwhile; the others are
--          noted
-- ARGV[4+] names of queues
--
-- Returns  the names of unused queues, the one that was noted the longest ago first

-- include: clock

local FIRST = 4

local now_ms = clock_ms()
local unused_ms, forgotten = now_ms - ARGV[1], tonumber(ARGV[3])
for i = FIRST, #ARGV do
  if i >= FIRST + forgotten then
    redis.call('ZADD', KEYS[1], now_ms, ARGV[i])
  elseif tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i]) or now_ms) <= unused_ms then
    redis.call('ZREM', KEYS[1], ARGV[i])
  end
end
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', unused_ms, 'LIMIT', 0, ARGV[2])
