-- Counts of which keys a consumer holds messages, after the concurrency of keys was limited
-- (include/fair_unacked.lua). Bounded: call it until all are counted.
--
-- KEYS[1]  limits (hash `control`)
-- KEYS[2]  wake zset
-- ARGV[1]  the value of its field `counting`: this call is for that counting
-- ARGV[2]  how many bytes, roughly
-- ARGV[3]  consumer ("": all are counted)
-- ARGV[4+] delivery tags
--
-- Returns  how many of the tags are done; -1 if this counting is over
--
-- Keeps: no message is counted twice. Nothing is taken before all are counted.

-- include: base
-- include: full
-- include: wake
-- include: fair_key

local counting, bytes_left, consumer = ARGV[1], tonumber(ARGV[2]), ARGV[3]
if redis.call('HGET', KEYS[1], 'counting') ~= counting then
  return -1
end
-- Until it is counted, nothing is taken.
work_when_full(KEYS[1])
local base = base_of(KEYS[1])
if consumer == '' then
  redis.call('HDEL', KEYS[1], 'counting')
  wake(KEYS[2])
  return 0
end
for i = 4, #ARGV do
  if bytes_left <= 0 then
    return i - 4
  end
  local holder = consumer .. '\30' .. ARGV[i]
  local stored = redis.call('HEXISTS', base .. 'unacked-keys', holder) == 0
    and redis.call('HGET', base .. 'unacked:' .. consumer, ARGV[i])
  if stored then
    local key = fair_key_of(stored, stored_start(stored))
    bytes_left = bytes_left - #stored
    redis.call('HSET', base .. 'unacked-keys', holder, key)
    redis.call('HINCRBY', base .. 'active', key, '1')
    -- Its consumer may ack it without freeing its permit (include/fair_earlier.lua).
    redis.call('ZADD', base .. 'earlier', '0', holder)
  end
end
return #ARGV - 3
