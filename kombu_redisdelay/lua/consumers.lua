-- Lists the consumers of a queue. Writes nothing.
--
-- KEYS[1]  consumers
--
-- Returns  server's clock in ms, then for each: consumer, when its lease ends in ms since the epoch

-- include: clock

local reply = { clock_ms() }
local rows = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #rows, 2 do
  reply[i + 1] = rows[i]
  reply[i + 2] = math.floor(tonumber(rows[i + 1]))
end
return reply
