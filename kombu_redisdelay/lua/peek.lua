-- Tells whether there is anything to take, now or soon. Writes nothing. A consumer asks that when it was not
-- woken for a while, in case that a token was lost or the clock was set; it costs a third of a take.
--
-- KEYS     the schedule of each queue, then the ready lists of all of them
-- ARGV[1]  how many queues
-- ARGV[2]  how soon, ms
--
-- Returns  1 or 0

-- include: clock

local queues = tonumber(ARGV[1])
if redis.call('EXISTS', unpack(KEYS, queues + 1)) > 0 then
  return 1
end
local soon_ms = clock_ms() + tonumber(ARGV[2])
for i = 1, queues do
  if redis.call('ZCOUNT', KEYS[i], '-inf', soon_ms) > 0 then
    return 1
  end
end
return 0
