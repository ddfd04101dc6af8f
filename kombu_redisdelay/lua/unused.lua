-- Lists known queues that were not noted for a while, the longest ago first. Writes nothing.
--
-- KEYS[1]  known queues
-- ARGV[1]  for how long, ms
-- ARGV[2]  how many at most
--
-- Returns  their names

-- include: clock

return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', clock_ms() - tonumber(ARGV[1]), 'LIMIT', 0, ARGV[2])
