-- Looks at some keys of a fair queue. Frees what is counted for messages that are not unacked any more: a
-- program that does not count has acked or taken them. Lets keys have their turns again that are at no limit
-- any more, because the limits were changed, and puts right how long others wait. Forgets rates of which
-- nothing is used.
--
-- KEYS[1]  limits (hash `control`)
-- KEYS[2]  wake zset
-- ARGV[1]  how many to look at, of what is counted and of the keys at a limit
-- ARGV[2]  where to begin with what is counted: "0", or what the last call returned
-- ARGV[3]  the same for the keys at a limit
--
-- Returns  where to begin the next time with what is counted, and with the keys at a limit
--
-- Keeps: no message is moved.

-- include: base
-- include: clock
-- include: full
-- include: wake
-- include: number
-- include: stored
-- include: members
-- include: fair_key
-- include: fair
-- include: fair_unacked
-- include: fair_earlier
-- include: fair_limits

local base, count = base_of(KEYS[1]), ARGV[1]

local function check_unacked(cursor)
  -- Of a small hash, Redis returns all. What is not released now is found the next time.
  local scan, left = redis.call('HSCAN', base .. 'unacked-keys', cursor, 'COUNT', count), 2 * tonumber(count)
  for i = 1, #scan[2], 2 do
    local consumer, tag = string.match(scan[2][i], '^(.*)\30(.*)$')
    local unacked = consumer and base .. 'unacked:' .. consumer
    if not consumer then
      redis.call('HDEL', base .. 'unacked-keys', scan[2][i])
    elseif left > 0 and redis.call('HEXISTS', unacked, tag) == 0 then
      release_key(base, unacked, tag)
      left = left - 1
    end
  end
  return scan[1]
end

local function check_limited(cursor)
  local scan = redis.call('HSCAN', base .. 'limited', cursor, 'COUNT', count)
  local fair = { base = base, needs_ack = true, now_us = clock_us() }
  read_fair_limits(fair)
  local keys, free = {}, {}
  for i = 1, #scan[2], 2 do
    keys[#keys + 1] = scan[2][i]
  end
  read_keys(fair, keys)
  local put_right = {}
  for _, key in ipairs(keys) do
    if not is_at_limit(fair, key) then
      free[#free + 1] = key
    elseif fair.keys[key].is_put_right then
      put_right[#put_right + 1] = key
    end
  end
  write_counts(fair)
  set_alarms(fair, put_right)
  if unlimit(base, free) or #put_right > 0 then
    wake(KEYS[2])
  end
  if fair.has_rate then
    -- An idle queue has no takes, which do it else.
    take_past(fair, 'tats')
  else
    redis.call('UNLINK', base .. 'tats', base .. 'alarms')
  end
  return scan[1]
end

return { check_unacked(ARGV[2]), check_limited(ARGV[3]) }
