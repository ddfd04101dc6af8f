-- Changes what an operator allows for a queue, see include/control.lua.
--
-- KEYS[1]  control
-- KEYS[2]  wake zset
-- ARGV     pairs of a field of the control and its new value ("": without it)
--
-- Returns  1
--
-- Keeps: the change counts for each take from now on. What is held stays held.

-- include: wake

for i = 1, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
local still = redis.call('HMGET', KEYS[1], 'paused_ms', 'interval_us', 'concurrency')
if not (still[1] or still[2] or still[3]) then
  redis.call('DEL', KEYS[1])
end
wake(KEYS[2])
return 1
