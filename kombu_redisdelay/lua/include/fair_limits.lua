-- How the limits of keys are kept (fair_at_limit.lua) by what hands messages out. There are
--   alarms       zset: key -> when its rate allows it the next message, microseconds since the epoch
-- and of the hash `control`
--   key_watcher, key_watched_us      the consumer that comes at the first alarm, and when that is: one of the
--                                    idle ones watches, as for the rate of a queue (limits.lua)
-- A key that is at a limit leaves the turns when its turn comes, so that it costs nothing while it waits.

-- include: fair_at_limit
-- include: fair_unacked
-- include: full

local MOST_ALARMS = 100
-- Another program may have written any time.
local THIRTY_YEARS_US = 1e15

-- Notes which of the keys wait for their rates.
local function set_alarms(fair, keys)
  local alarms = {}
  for _, key in ipairs(keys) do
    local state = fair.keys[key]
    if state.interval_us and token_of_key_us(state) > fair.now_us then
      alarms[#alarms + 1] = string.format('%.0f', math.ceil(token_of_key_us(state)))
      alarms[#alarms + 1] = key
    end
  end
  if #alarms > 0 then
    redis.call('ZADD', fair.base .. 'alarms', unpack(alarms))
  end
end

-- Takes out of a zset the keys whose time has come. Returns them.
local function take_past(fair, name)
  local past = redis.call('ZRANGEBYSCORE', fair.base .. name, '-inf', fair.now_us, 'LIMIT', 0, MOST_ALARMS)
  if #past > 0 then
    redis.call('ZREM', fair.base .. name, unpack(past))
  end
  return past
end

-- Lets keys have their turns again whose rate allows it by now, and forgets rates of which nothing is used.
-- Returns how many keys these were.
local function ring_alarms(fair)
  if not fair.has_rate then
    return 0
  end
  local keys = take_past(fair, 'alarms')
  unlimit(fair.base, keys)
  take_past(fair, 'tats')
  return #keys
end

-- Notes that the message was handed out which was found last (fair_order.lua).
local function count_key(fair, consumer, tag)
  if not fair.is_limited then
    return
  end
  local key = fair.latest
  local state = fair.keys[key]
  if fair.counts and fair.needs_ack then
    state.unacked, state.is_counted = state.unacked + 1, true
    fair.holders[#fair.holders + 1] = consumer .. '\30' .. tag
    fair.holders[#fair.holders + 1] = key
  end
  if state.interval_us then
    state.rate_clock_us = state.rate_clock_us + state.interval_us
    state.is_spent = true
  end
end

-- What is used of the rates of keys outlives the last worker, and the end of fairness, but no longer than it
-- is needed.
local function write_rate_clocks(fair, rate_clocks)
  local name = fair.base .. 'tats'
  work_when_full(fair.base .. 'control')
  redis.call('ZADD', name, unpack(rate_clocks))
  local last_us = tonumber(redis.call('ZRANGE', name, -1, -1, 'WITHSCORES')[2])
  local left_us = math.min(THIRTY_YEARS_US, math.max(1, last_us - fair.now_us))
  redis.call('PEXPIRE', name, string.format('%.0f', math.ceil(left_us / 1000)))
end

-- Writes what was handed out, and what was put right.
local function write_counts(fair)
  local rate_clocks, unacked = {}, {}
  for key, state in pairs(fair.keys) do
    if state.is_spent or state.is_put_right then
      rate_clocks[#rate_clocks + 1] = string.format('%.0f', math.ceil(state.rate_clock_us))
      rate_clocks[#rate_clocks + 1] = key
    end
    if state.is_counted then
      unacked[#unacked + 1] = key
      unacked[#unacked + 1] = string.format('%d', state.unacked)
    end
  end
  if #unacked > 0 then
    redis.call('HSET', fair.base .. 'unacked-keys', unpack(fair.holders))
    redis.call('HSET', fair.base .. 'active', unpack(unacked))
  end
  if #rate_clocks > 0 then
    write_rate_clocks(fair, rate_clocks)
  end
end

-- When the first alarm is, microseconds since the epoch; nil if there is none.
local function first_alarm_us(fair)
  local first = fair.has_rate and redis.call('ZRANGE', fair.base .. 'alarms', 0, 0, 'WITHSCORES')[2]
  return first and math.min(fair.now_us + THIRTY_YEARS_US, math.ceil(tonumber(first)))
end

-- Whether no other consumer comes by then.
local function is_alarm_unwatched(fair, alarm_us, consumer)
  if not fair.watcher or fair.watcher == consumer or not fair.watched_us then
    return true
  end
  return fair.watched_us <= fair.now_us or fair.watched_us > alarm_us
end

-- Has the consumer come at the first alarm, if no other one does. Returns the microseconds until then, -1 if
-- it need not come. With `may_watch` false it handles messages first: then another one has to be woken, and
-- the second value is true.
local function watch_alarm(fair, consumer, may_watch)
  local alarm_us = first_alarm_us(fair)
  if not alarm_us or not is_alarm_unwatched(fair, alarm_us, consumer) then
    return -1, false
  end
  local control = fair.base .. 'control'
  if may_watch then
    -- A full Redis may refuse that: then others come, too.
    local at_us = string.format('%.0f', alarm_us)
    redis.pcall('HSET', control, 'key_watcher', consumer, 'key_watched_us', at_us)
    return math.max(1, alarm_us - fair.now_us), false
  elseif fair.watcher == consumer then
    redis.call('HDEL', control, 'key_watcher', 'key_watched_us')
  end
  return -1, true
end
