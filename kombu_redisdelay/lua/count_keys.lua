-- Puts right of which keys of a fair queue some messages are counted (include/fair_unacked.lua): those that
-- were taken before messages counted, and those that were acked by who does not count. Bounded: call it until
-- all are done.
--
-- KEYS[1]  limits (hash `control`)
-- KEYS[2]  wake zset
-- ARGV[1]  the value of its field `counting`: this call is for that counting ("": all were counted)
-- ARGV[2]  how many bytes, roughly
-- ARGV[3+] the messages: <consumer> \30 <delivery tag> (none: all are counted now)
--
-- Returns  how many of them are done; -1 if this counting is over
--
-- Keeps: no message is counted twice. Nothing is taken before all are counted. A consumer that holds a
-- message is listed, so that others see whether it is lost.

-- include: base
-- include: fair_unacked
-- include: full
-- include: fair_key
-- include: holders

local counting, bytes_left = ARGV[1], tonumber(ARGV[2])
if (redis.call('HGET', KEYS[1], 'counting') or '') ~= counting then
  return -1
end
-- Until it is counted, nothing is taken.
work_when_full(KEYS[1])
local base = base_of(KEYS[1])
local holders = {}

local function count(unacked, tag, message)
  local stored = redis.call('HGET', unacked, tag)
  local key = fair_key_of(stored, stored_start(stored))
  bytes_left = bytes_left - #stored
  redis.call('HSET', base .. 'unacked-keys', message, key)
  redis.call('HINCRBY', base .. 'active', key, '1')
end

local function put_right(message)
  local consumer, tag = string.match(message, '^(.*)\30(.*)$')
  if not consumer then
    redis.call('HDEL', base .. 'unacked-keys', message)
    return
  end
  local unacked = base .. 'unacked:' .. consumer
  if redis.call('HEXISTS', unacked, tag) == 0 then
    release_key(base, unacked, tag)
    return
  end
  if counting ~= '' and redis.call('HEXISTS', base .. 'unacked-keys', message) == 0 then
    count(unacked, tag, message)
  end
  if holders[#holders] ~= consumer then
    holders[#holders + 1] = consumer
  end
end

local done = 0
while done < #ARGV - 2 and bytes_left > 0 do
  done = done + 1
  put_right(ARGV[done + 2])
end
list_holders(base, holders)
if counting ~= '' and #ARGV == 2 then
  redis.call('HDEL', KEYS[1], 'counting')
  redis.call('UNLINK', base .. 'claim:counting')
  wake(KEYS[2])
end
return done
