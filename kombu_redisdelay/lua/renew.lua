-- Renews a consumer's lease in all its queues.
--
-- KEYS     consumers of each queue
-- ARGV[1]  consumer
-- ARGV[2]  how long the lease lasts, ms
--
-- Returns  when it ends, ms since the epoch

-- include: clock

local lease_end_ms = clock_ms() + tonumber(ARGV[2])
for _, consumers in ipairs(KEYS) do
  -- Removed first, so that a full Redis allows it: a lease must not be lost for that.
  redis.call('ZREM', consumers, ARGV[1])
  redis.call('ZADD', consumers, lease_end_ms, ARGV[1])
end
return lease_end_ms
