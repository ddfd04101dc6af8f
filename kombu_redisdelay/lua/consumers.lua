-- Lists consumers of a queue. Writes nothing.
--
-- KEYS[1]  consumers
-- ARGV[1]  ms
-- ARGV[2]  where to begin with the names, if there are more than ARGV[3]: from 0, the first, to 1, the last
-- ARGV[3]  how many names at most
-- ARGV[4]  how many leases at most
--
-- Returns  server's clock in ms; for each consumer whose lease ends within ARGV[1], or has ended: its name,
--          and when that is, in ms since the epoch, first the one that ends first; the names of consumers

-- include: clock

local now_ms = clock_ms()
-- Scores only of these, because Redis takes longer to write a score than a name.
local before_ms = now_ms + tonumber(ARGV[1])
local ending = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', before_ms, 'WITHSCORES', 'LIMIT', 0, ARGV[4])
for i = 2, #ending, 2 do
  ending[i] = math.floor(tonumber(ending[i]))
end
local most = tonumber(ARGV[3])
local more = math.max(0, redis.call('ZCARD', KEYS[1]) - most)
local first = math.floor(tonumber(ARGV[2]) * (more + 1))
return { now_ms, ending, redis.call('ZRANGE', KEYS[1], first, first + most - 1) }
