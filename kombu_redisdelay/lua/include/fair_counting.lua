-- Whether messages of keys are counted (fair_unacked.lua): if the queue is fair, and any concurrency of keys
-- is limited. What was taken before is counted by count_keys.lua; until that is done, nothing is taken.

-- include: base
-- include: clock

local function is_counted(control)
  local fair, concurrency, has_own =
    unpack(redis.call('HMGET', control, 'fair', 'key_concurrency', 'has_key_limits'))
  return fair == 'on' and (concurrency or has_own) and true or false
end

-- To be called after a change of the limits. `was_counted` is is_counted() before it.
local function count_keys_from_now(control, was_counted)
  local counts = is_counted(control)
  if counts == was_counted then
    return
  end
  local base = base_of(control)
  -- Whoever counts, counts for an earlier limit.
  redis.call('UNLINK', base .. 'unacked-keys', base .. 'active', base .. 'earlier', base .. 'claim:counting')
  if counts then
    redis.call('HSET', control, 'counting', string.format('%.0f', clock_us()))
  else
    redis.call('HDEL', control, 'counting')
  end
end
