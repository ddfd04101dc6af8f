-- Adds lines about tasks that a consumer has finished, and drops those that are too many or too old.
--
-- KEYS[1]  finished: list, the newest line first. Each is "<when, ms> ..." (broker/finished.py)
-- KEYS[2]  hash, `number` -> that of the latest lines of this consumer
-- ARGV     see below, by their names
--
-- Returns  1: they are there. 2: they are not kept, because the server is full, or another program has
--          written to the key
--
-- Keeps: the number only grows. So lines that are sent again, because their reply was lost, are added once.

-- include: clock

local
  -- Of these lines.
  number,
  -- How many are kept, and for how long in ms.
  count, age_ms = unpack(ARGV)
-- The lines follow, the oldest first.
local FIRST_LINE = 4

-- No reply is lost for longer, ms: a consumer without a connection has lost its lease by then.
local NUMBER_KEPT_MS = 3600 * 1000
local MOST_TRIMMED = 200

local sent = redis.pcall('HGET', KEYS[2], 'number')
if type(sent) == 'string' and (tonumber(sent) or 0) >= tonumber(number) then
  return 1
end
-- The first write of all: a full server refuses this one, and no later one (include/full.lua).
local length = redis.pcall('LPUSH', KEYS[1], unpack(ARGV, FIRST_LINE))
if type(length) ~= 'number' then
  return 2
end
redis.pcall('HSET', KEYS[2], 'number', number)
redis.call('PEXPIRE', KEYS[2], NUMBER_KEPT_MS)
if length > tonumber(count) then
  redis.call('LTRIM', KEYS[1], 0, count - 1)
end

local oldest_ms = clock_ms() - age_ms
local function is_too_old(line)
  return (tonumber(string.match(line, '^%d+')) or 0) < oldest_ms
end
if is_too_old(redis.call('LINDEX', KEYS[1], -1)) then
  local last = redis.call('LRANGE', KEYS[1], -MOST_TRIMMED, -1)
  local left = #last
  while left > 0 and is_too_old(last[left]) do
    left = left - 1
  end
  redis.call('LTRIM', KEYS[1], 0, left - #last - 1)
end
redis.call('PEXPIRE', KEYS[1], age_ms)
return 1
