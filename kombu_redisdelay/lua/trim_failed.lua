-- Removes the oldest failed tasks of a queue as long as they are too many, too old or too large together.
-- Counts them anew before, if that has begun (include/failed.lua), and if there are none, what is left of
-- them goes.
--
-- KEYS[1]  failed
-- ARGV[1]  how many are kept
-- ARGV[2]  for how long, ms
-- ARGV[3]  of how many bytes together
-- ARGV[4]  how many to count anew and how many to remove at most
--
-- Returns  how many were counted anew, or removed, whichever is more

-- include: base
-- include: clock
-- include: failed

local keys = failed_keys(base_of(KEYS[1]))
if not are_usable(keys) then
  return 0
end
if redis.call('ZCARD', keys.list) == 0 then
  unlink_rest(keys)
  return 0
end
local most = tonumber(ARGV[4])
local counted = count_anew(keys, most)
local limits = { count = tonumber(ARGV[1]), age_ms = tonumber(ARGV[2]), bytes = tonumber(ARGV[3]) }
return math.max(counted, trim_failed(keys, limits, clock_us() / 1000, most))
