-- Lists the consumers of a queue. Writes nothing.
--
-- KEYS[1]  consumers
--
-- Returns  for each: consumer, ms until its lease ends (0 or less: it has ended)

-- include: clock

local now_ms = clock_ms()
local reply = {}
local rows = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #rows, 2 do
  reply[i] = rows[i]
  reply[i + 1] = tonumber(rows[i + 1]) - now_ms
end
return reply
