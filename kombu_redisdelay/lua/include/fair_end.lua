-- The end of a fair queue.

-- include: control
-- include: fair

-- When nothing is left in the lists of keys, nothing is left of the fair queue but the limits that an
-- operator has set, and how much of their rates is used: off and on again must not give each key a new burst.
local function end_fairness(base)
  if redis.call('EXISTS', base .. 'fair') == 1 then
    return
  end
  redis.call('HDEL', base .. 'control', 'fair')
  remove_unused(base .. 'control')
  redis.call('UNLINK', base .. 'limited', base .. 'alarms')
  -- If the queue is not fair any more because the hash `control` was lost, nobody has done that.
  redis.call('UNLINK', base .. 'unacked-keys', base .. 'active', base .. 'earlier')
end

-- The same, if the queue is not to be fair any more.
local function end_if_off(base)
  if fair_state(base) == 'off' then
    end_fairness(base)
  end
end
