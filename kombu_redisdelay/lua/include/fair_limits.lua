-- What an operator allows for the keys of a fair queue, for all consumers together. The hash `control` has
--   key_concurrency                  how many messages of a key may be unacked
--   key_interval_us, key_burst       a rate for each key, as in limits.lua
--   has_key_limits                   some keys have limits of their own
--   counting                         what is unacked is being counted (count_keys.lua): nothing is taken
--   key_watcher, key_watched_us      the consumer that comes at the first alarm, and when that is: one of the
--                                    idle ones watches, as for the rate of a queue (limits.lua)
-- and there are
--   key-limits   hash: key -> since when it is paused, ms since the epoch, concurrency, interval and burst,
--                separated by spaces; 0 is as for every key
--   tats         zset: key -> when it may have `burst` messages at once again, microseconds since the epoch
--   alarms       zset: key -> when its rate allows it the next message
-- A key that is at a limit leaves the turns, so that it costs nothing while it waits.

local MOST_ALARMS = 100
-- Another program may have written any time.
local THIRTY_YEARS_US = 1e15

-- Reads them into `fair`, of which only `base` and `needs_ack` are known.
local function read_fair_limits(fair)
  local control = fair.base .. 'control'
  fair.keys = {}
  if redis.call('HLEN', control) == 1 then
    -- Usually: it has the field `fair` only.
    return
  end
  local found = redis.call(
    'HMGET',
    control,
    'key_concurrency',
    'key_interval_us',
    'key_burst',
    'has_key_limits',
    'counting',
    'key_watcher',
    'key_watched_us'
  )
  fair.concurrency, fair.interval_us, fair.burst =
    number_in(found[1]), number_in(found[2]), number_in(found[3])
  fair.has_own, fair.is_counting = found[4], found[5]
  fair.watcher, fair.watched_us = found[6], tonumber(found[7])
  fair.counts = fair.concurrency or fair.has_own
  fair.has_rate = fair.interval_us or fair.has_own
  fair.is_limited = fair.counts or fair.has_rate
end

local function limits_of_key(fair, text)
  if not text then
    return { concurrency = fair.concurrency, interval_us = fair.interval_us, burst = fair.burst or 1 }
  end
  local paused, concurrency, interval_us, burst = string.match(text, '^(%S+) (%S+) (%S+) (%S+)$')
  interval_us, burst = number_in(interval_us), number_in(burst)
  return {
    is_paused = number_in(paused),
    concurrency = number_in(concurrency) or fair.concurrency,
    interval_us = interval_us or fair.interval_us,
    burst = (interval_us and burst or fair.burst) or 1,
  }
end

-- Reads the limits of some keys, and how much of them is used.
local function read_keys(fair, keys)
  if not fair.is_limited or #keys == 0 then
    return
  end
  local own = fair.has_own and redis.call('HMGET', fair.base .. 'key-limits', unpack(keys)) or {}
  local active = fair.counts and redis.call('HMGET', fair.base .. 'active', unpack(keys)) or {}
  local tats = fair.has_rate and redis.call('ZMSCORE', fair.base .. 'tats', unpack(keys)) or {}
  for i, key in ipairs(keys) do
    if not fair.keys[key] then
      local state = limits_of_key(fair, own[i])
      state.active = tonumber(active[i]) or 0
      if state.interval_us then
        local latest_us, tat_us = fair.now_us + state.burst * state.interval_us, tonumber(tats[i]) or 0
        -- It is later if the clock was set, or the rate was lower. It is written anew: else it would be too
        -- late again the next time, and the key would wait until the old time is over.
        state.is_put_right = tat_us > latest_us
        state.tat_us = math.min(latest_us, math.max(fair.now_us, tat_us))
      end
      fair.keys[key] = state
    end
  end
end

-- When the rate of a key allows it the next message.
local function token_of_key_us(state)
  return state.tat_us - (state.burst - 1) * state.interval_us
end

-- Whether a key may not be served now.
local function is_at_limit(fair, key)
  local state = fair.keys[key]
  if not state then
    return false
  elseif state.is_paused then
    return true
  elseif fair.needs_ack and state.concurrency and state.active >= state.concurrency then
    return true
  end
  return state.interval_us and token_of_key_us(state) > fair.now_us or false
end

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

-- Notes that the message was handed out which was found last (fair_turns.lua).
local function count_key(fair, consumer, tag)
  if not fair.is_limited then
    return
  end
  local key = fair.latest
  local state = fair.keys[key]
  if fair.counts and fair.needs_ack then
    state.active, state.is_counted = state.active + 1, true
    fair.holders[#fair.holders + 1] = consumer .. '\30' .. tag
    fair.holders[#fair.holders + 1] = key
  end
  if state.interval_us then
    state.tat_us = state.tat_us + state.interval_us
    state.is_spent = true
  end
end

-- What is used of the rates of keys outlives the last worker, and the end of fairness, but no longer than it
-- is needed.
local function write_tats(fair, tats)
  local name = fair.base .. 'tats'
  work_when_full(fair.base .. 'control')
  redis.call('ZADD', name, unpack(tats))
  local last_us = tonumber(redis.call('ZRANGE', name, -1, -1, 'WITHSCORES')[2])
  local left_us = math.min(THIRTY_YEARS_US, math.max(1, last_us - fair.now_us))
  redis.call('PEXPIRE', name, string.format('%.0f', math.ceil(left_us / 1000)))
end

-- Writes what was handed out, and what was put right.
local function write_counts(fair)
  local tats, active = {}, {}
  for key, state in pairs(fair.keys) do
    if state.is_spent or state.is_put_right then
      tats[#tats + 1] = string.format('%.0f', math.ceil(state.tat_us))
      tats[#tats + 1] = key
    end
    if state.is_counted then
      active[#active + 1] = key
      active[#active + 1] = string.format('%d', state.active)
    end
  end
  if #active > 0 then
    redis.call('HSET', fair.base .. 'unacked-keys', unpack(fair.holders))
    redis.call('HSET', fair.base .. 'active', unpack(active))
  end
  if #tats > 0 then
    write_tats(fair, tats)
  end
end

-- When the first alarm is, or a look at what was taken earlier (fair_earlier.lua), microseconds since the
-- epoch; nil if there is none.
local function first_alarm_us(fair)
  local first = fair.has_rate and redis.call('ZRANGE', fair.base .. 'alarms', 0, 0, 'WITHSCORES')[2]
  local alarm_us = first and math.min(fair.now_us + THIRTY_YEARS_US, math.ceil(tonumber(first)))
  local look_us = look_at_earlier_us(fair)
  return alarm_us and look_us and math.min(alarm_us, look_us) or alarm_us or look_us
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
