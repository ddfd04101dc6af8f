-- Lists the consumers of a queue. Writes nothing.
--
-- KEYS[1]  consumers
-- ARGV[1]  ms
--
-- Returns  server's clock in ms; for each consumer whose lease ends within ARGV[1], or has ended: its name,
--          and when that is, in ms since the epoch; the names of all consumers

-- include: clock

local now_ms = clock_ms()
-- Scores only of these, because Redis takes longer to write a score than a name. Every consumer asks for
-- all names.
local ending = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms + tonumber(ARGV[1]), 'WITHSCORES')
for i = 2, #ending, 2 do
  ending[i] = math.floor(tonumber(ending[i]))
end
return { now_ms, ending, redis.call('ZRANGE', KEYS[1], 0, -1) }
