-- The end of a fair queue.

-- When nothing is left in the lists of keys, nothing is left of the fair queue but the limits that an
-- operator has set, and how much of their rates is used.
local function end_fairness(base)
  if redis.call('EXISTS', base .. 'fair') == 1 then
    return
  end
  redis.call('HDEL', base .. 'control', 'fair')
  remove_unused(base .. 'control')
  redis.call('UNLINK', base .. 'limited', base .. 'alarms')
  local last_us = redis.call('ZRANGE', base .. 'tats', -1, -1, 'WITHSCORES')[2]
  if last_us then
    local left_ms = math.max(1, math.ceil((last_us - clock_us()) / 1000))
    redis.call('PEXPIRE', base .. 'tats', string.format('%.0f', left_ms))
  end
end
