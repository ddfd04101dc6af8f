-- Forgets queues that have nothing in them, unless they were noted meanwhile.
--
-- KEYS[1]  known queues
-- ARGV[1]  a queue that was noted less than this long ago is not forgotten, ms
-- ARGV[2+] names of queues

-- include: clock

local before_ms = clock_ms() - tonumber(ARGV[1])
for i = 2, #ARGV do
  local noted_ms = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i]))
  if noted_ms and noted_ms <= before_ms then
    redis.call('ZREM', KEYS[1], ARGV[i])
  end
end
