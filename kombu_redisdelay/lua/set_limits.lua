-- Changes what an operator allows: for a queue, see include/limits.lua, or for one key of a fair queue, see
-- include/fair_at_limit.lua.
--
-- KEYS[1]  limits (hash `control`)
-- KEYS[2]  wake zset
-- ARGV[1]  ":" and the key ("": for the queue)
-- ARGV[2+] pairs of a field and its new value ("": without it). The fields of a key are paused_ms,
--          concurrency, interval_us and burst; without one, what is allowed for every key counts
--
-- Returns  1
--
-- Keeps: the change counts for each take from now on. What is unacked stays unacked. What was taken counts
-- against another rate, too: else each change would allow a burst. What is paused is paused since the first
-- pause. Where the concurrency of keys is limited from now on, nothing is taken before what is unacked is
-- counted. A queue that is not to be fair any more, and has no messages that are sorted, is not fair at
-- once.

-- include: full
-- include: number
-- include: fair_counting
-- include: fair_end
-- include: fair_unacked

-- Operators pause queues when Redis is full, so it must not refuse this.
work_when_full(KEYS[1])

local base, counted = base_of(KEYS[1]), is_counted(KEYS[1])

local function change_queue()
  local interval_before, full_at_us = unpack(redis.call('HMGET', KEYS[1], 'interval_us', 'full_at_us'))
  for i = 2, #ARGV, 2 do
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
  end_if_off(base)
end

local function change_key(key)
  local hash, changes, values, any = base .. 'key-limits', {}, {}, false
  for i = 2, #ARGV, 2 do
    changes[ARGV[i]] = ARGV[i + 1] == '' and '0' or ARGV[i + 1]
  end
  local before = { string.match(redis.call('HGET', hash, key) or '0 0 0 0', '^(%S+) (%S+) (%S+) (%S+)$') }
  for i, field in ipairs({ 'paused_ms', 'concurrency', 'interval_us', 'burst' }) do
    local is_kept = field == 'paused_ms' and changes[field] ~= '0' and before[i] ~= '0'
    values[i] = not is_kept and changes[field] or before[i] or '0'
    any = any or values[i] ~= '0'
  end
  if any then
    redis.call('HSET', hash, key, table.concat(values, ' '))
  else
    redis.call('HDEL', hash, key)
  end
  if redis.call('EXISTS', hash) == 1 then
    redis.call('HSET', KEYS[1], 'has_key_limits', '1')
  else
    redis.call('HDEL', KEYS[1], 'has_key_limits')
  end
  unlimit(base, { key })
end

if ARGV[1] == '' then
  change_queue()
else
  change_key(string.sub(ARGV[1], 2))
end
count_keys_from_now(KEYS[1], counted)
remove_unused(KEYS[1])
wake(KEYS[2])
return 1
