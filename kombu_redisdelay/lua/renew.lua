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
  local ttl_ms = redis.call('PTTL', consumers)
  -- Removed first, so that a full Redis allows it: a lease must not be lost for that.
  redis.call('ZREM', consumers, ARGV[1])
  redis.call('ZADD', consumers, lease_end_ms, ARGV[1])
  -- That of a queue with x-expires goes with the last member, and this process may be killed now.
  if ttl_ms > 0 then
    redis.call('PEXPIRE', consumers, ttl_ms)
  end
end
return lease_end_ms
