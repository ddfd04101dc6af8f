-- Notes that queues are in use, so that operations on all queues find them.
--
-- KEYS[1]  known queues
-- ARGV     names of queues

-- include: clock

local now_ms = clock_ms()
for _, queue in ipairs(ARGV) do
  redis.call('ZADD', KEYS[1], now_ms, queue)
end
