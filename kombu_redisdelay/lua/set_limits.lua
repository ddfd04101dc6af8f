-- Changes what an operator allows for a queue, see include/limits.lua.
--
-- KEYS[1]  limits (hash `control`)
-- KEYS[2]  wake zset
-- ARGV     pairs of a field of the limits and its new value ("": without it)
--
-- Returns  1
--
-- Keeps: the change counts for each take from now on. What is unacked stays unacked. What was taken counts
-- against another rate, too: else each change would allow a burst. A queue is paused since the first pause.
-- Where the concurrency of keys is limited from now on, nothing is taken before what is unacked is counted.
-- A queue that is not to be fair any more, and has no messages that are sorted in, is not fair at once.

-- include: full
-- include: number
-- include: wake
-- include: fair_counting
-- include: fair_end

-- Operators pause queues when Redis is full, so it must not refuse this.
work_when_full(KEYS[1])

local counted = is_counted(KEYS[1])
local interval_before, full_at_us = unpack(redis.call('HMGET', KEYS[1], 'interval_us', 'full_at_us'))
for i = 1, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  if value == '' then
    redis.call('HDEL', KEYS[1], field)
  elseif field ~= 'paused_ms' or not number_in(redis.call('HGET', KEYS[1], field)) then
    redis.call('HSET', KEYS[1], field, value)
  end
end
local interval = number_in(redis.call('HGET', KEYS[1], 'interval_us'))
interval_before, full_at_us = number_in(interval_before), number_in(full_at_us)
if interval and interval_before and full_at_us and interval ~= interval_before then
  local now_us = clock_us()
  full_at_us = now_us + math.max(0, full_at_us - now_us) / interval_before * interval
  redis.call('HSET', KEYS[1], 'full_at_us', string.format('%.0f', math.ceil(full_at_us)))
end
if redis.call('HGET', KEYS[1], 'fair') == 'off' then
  end_fairness(base_of(KEYS[1]))
end
count_keys_from_now(KEYS[1], counted)
remove_unused(KEYS[1])
wake(KEYS[2])
return 1
