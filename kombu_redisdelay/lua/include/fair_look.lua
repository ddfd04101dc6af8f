-- include: clock
-- include: fair
-- include: fair_at_limit

-- What a script that only looks at a fair queue knows of the limits of its keys: for read_keys() and
-- is_at_limit() (fair_at_limit.lua).
local function look_at_limits(base)
  local fair = { base = base, needs_ack = true, now_us = clock_us(), keys = {} }
  -- Where a queue is not fair, they have no effect.
  if fair_state(base) == 'on' then
    read_fair_limits(fair)
  end
  return fair
end
