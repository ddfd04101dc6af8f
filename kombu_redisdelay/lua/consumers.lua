-- Lists consumers of queues. Writes nothing.
--
-- KEYS     consumers of each queue
-- ARGV[1]  ms
-- ARGV[2]  which part of the names, if a queue has more than ARGV[3]: from 0, the first part, to 1, the last
-- ARGV[3]  how many names at most, for each queue
-- ARGV[4]  how many leases at most, for each queue
--
-- Returns  server's clock in ms; for each queue a pair: for each consumer whose lease ends within ARGV[1],
--          or has ended, its name, and when that is, in ms since the epoch, first the one that ends first;
--          and names of consumers

-- include: clock

local now_ms = clock_ms()
local before_ms, part, most = now_ms + tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local found = {}
for i, consumers in ipairs(KEYS) do
  -- Scores only of these, because Redis takes longer to write a score than a name.
  local ending = redis.call('ZRANGEBYSCORE', consumers, '-inf', before_ms, 'WITHSCORES', 'LIMIT', 0, ARGV[4])
  for j = 2, #ending, 2 do
    ending[j] = math.floor(tonumber(ending[j]))
  end
  local parts = math.max(1, math.ceil(redis.call('ZCARD', consumers) / most))
  local first = math.min(parts - 1, math.floor(part * parts)) * most
  found[i] = { ending, redis.call('ZRANGE', consumers, first, first + most - 1) }
end
return { now_ms, found }
