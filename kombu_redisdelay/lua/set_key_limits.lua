-- Changes what an operator allows for one key of a fair queue, see include/fair_limits.lua.
--
-- KEYS[1]  limits (hash `control`)
-- KEYS[2]  wake zset
-- ARGV[1]  key
-- ARGV[2]  since when it is paused, ms since the epoch ("": as it is; 0: it is not)
-- ARGV[3]  its concurrency ("": as it is; 0: as for every key)
-- ARGV[4]  its interval, microseconds, in the same way
-- ARGV[5]  its burst, in the same way
--
-- Returns  1
--
-- Keeps: as in set_limits.lua. A key is paused since the first pause.

-- include: full
-- include: fair_unacked
-- include: control
-- include: fair_counting

work_when_full(KEYS[1])

local base, key = base_of(KEYS[1]), ARGV[1]
local hash, counted = base .. 'key-limits', is_counted(KEYS[1])
local values, any = {}, false
for found in string.gmatch(redis.call('HGET', hash, key) or '0 0 0 0', '%S+') do
  local index = #values + 1
  local value = ARGV[index + 1]
  local is_kept = value == '' or index == 1 and value ~= '0' and found ~= '0'
  values[index] = is_kept and found or value
  any = any or values[index] ~= '0'
end
if any then
  redis.call('HSET', hash, key, table.concat(values, ' '))
else
  redis.call('HDEL', hash, key)
end
if redis.call('EXISTS', hash) == 1 then
  redis.call('HSET', KEYS[1], 'has_key_limits', '1')
else
  redis.call('HDEL', KEYS[1], 'has_key_limits')
end
count_keys_from_now(KEYS[1], counted)
remove_unused(KEYS[1])
unlimit(base, { key })
wake(KEYS[2])
return 1
