-- Changes what an operator allows for a queue (include/limits.lua), or for one key of a fair queue
-- (include/fair_limits.lua).
--
-- KEYS[1]  limits (hash `control`)
-- KEYS[2]  wake zset
-- ARGV[1]  "queue" or "key"
-- ARGV[2+] for a queue, pairs of a field of the limits and its new value ("": without it). For a key, the
--          key; since when it is paused, ms since the epoch; its concurrency; its interval, microseconds; and
--          its burst; each "" to leave it as it is, or 0: it is not paused, or has the limit of every key
--
-- Returns  1
--
-- Keeps: the change counts for each take from now on. What is unacked stays unacked. What was taken counts
-- against another rate, too: else each change would allow a burst. A queue or a key is paused since the first
-- pause. Where the concurrency of keys is limited from now on, nothing is taken before what is unacked is
-- counted. A queue that is not to be fair any more, and has no messages that are sorted in, is not fair at
-- once.

-- include: full
-- include: number
-- include: fair_unacked
-- include: fair_counting
-- include: fair_end

local control, base = KEYS[1], base_of(KEYS[1])

local function change_queue()
  local interval_before, full_at_us = unpack(redis.call('HMGET', control, 'interval_us', 'full_at_us'))
  for i = 2, #ARGV, 2 do
    local field, value = ARGV[i], ARGV[i + 1]
    if value == '' then
      redis.call('HDEL', control, field)
    elseif field ~= 'paused_ms' or not number_in(redis.call('HGET', control, field)) then
      redis.call('HSET', control, field, value)
    end
  end
  local interval = number_in(redis.call('HGET', control, 'interval_us'))
  interval_before, full_at_us = number_in(interval_before), number_in(full_at_us)
  if interval and interval_before and full_at_us and interval ~= interval_before then
    local now_us = clock_us()
    full_at_us = now_us + math.max(0, full_at_us - now_us) / interval_before * interval
    redis.call('HSET', control, 'full_at_us', string.format('%.0f', math.ceil(full_at_us)))
  end
  end_if_off(base)
end

local function change_key(key, ...)
  local hash, values, any = base .. 'key-limits', {}, false
  for found in string.gmatch(redis.call('HGET', hash, key) or '0 0 0 0', '%S+') do
    local index = #values + 1
    local value = select(index, ...)
    local is_kept = value == '' or index == 1 and value ~= '0' and found ~= '0'
    values[index] = is_kept and found or value
    any = any or values[index] ~= '0'
  end
  if any then
    redis.call('HSET', hash, key, table.concat(values, ' '))
  else
    redis.call('HDEL', hash, key)
  end
  if redis.call('EXISTS', hash) == 1 then
    redis.call('HSET', control, 'has_key_limits', '1')
  else
    redis.call('HDEL', control, 'has_key_limits')
  end
end

-- Operators pause queues when Redis is full, so it must not refuse this.
work_when_full(control)

local was_counted = is_counted(control)
if ARGV[1] == 'key' then
  change_key(unpack(ARGV, 2))
else
  change_queue()
end
count_keys_from_now(control, was_counted)
remove_unused(control)
if ARGV[1] == 'key' then
  unlimit(base, { ARGV[2] })
end
wake(KEYS[2])
return 1
