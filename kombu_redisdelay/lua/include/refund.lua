-- What a message has taken that was not run is given back: one more may be taken at once. Nobody notes which
-- messages were taken before there was a rate.

-- include: number
-- include: wake

local function refund_queue(base, now_us)
  local control = base .. 'control'
  local fields = redis.pcall('HMGET', control, 'interval_us', 'full_at_us', 'concurrency')
  if fields.err then
    return
  end
  local interval_us, full_at_us = number_in(fields[1]), number_in(fields[2])
  if interval_us and full_at_us then
    full_at_us = math.max(now_us, full_at_us - interval_us)
    redis.call('HSET', control, 'full_at_us', string.format('%.0f', full_at_us))
  end
  if interval_us or number_in(fields[3]) then
    wake(base .. 'wake')
  end
end

-- The same for the rate of its key in a fair queue.
local function refund_key(base, stored, now_us)
  -- include: fair_key
  -- include: fair_limits
  local fair = { base = base, needs_ack = true, now_us = now_us }
  read_fair_limits(fair)
  local key = fair_key_of(stored, stored_start(stored))
  read_keys(fair, { key })
  local state = fair.keys[key]
  if state and state.interval_us then
    state.rate_clock_us, state.is_put_right = math.max(now_us, state.rate_clock_us - state.interval_us), true
    write_counts(fair)
    if unlimit(base, { key }) then
      wake(base .. 'wake')
    end
  end
end

local function refund(queue, stored, now_us)
  refund_queue(queue.base, now_us)
  if queue.keys and queue.keys.are_sorted then
    refund_key(queue.base, stored, now_us)
  end
end
