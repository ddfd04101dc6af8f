-- What an operator allows for the keys of a fair queue, for all consumers together. The hash `control` has
--   key_concurrency                  how many messages of a key may be unacked
--   key_interval_us, key_burst       a rate for each key, as in limits.lua
--   has_key_limits                   some keys have limits of their own
--   counting                         what is unacked is being counted (count_keys.lua): nothing is taken
-- and there are
--   key-limits   hash: key -> since when it is paused, ms since the epoch, concurrency, interval and burst,
--                separated by spaces; 0 is as for every key
--   tats         zset: key -> when it may have `burst` messages at once again, microseconds since the epoch
--   alarms       zset: key -> when its rate allows it the next message
-- A key that is at a limit leaves the turns, so that it costs nothing while it waits.

local MOST_ALARMS = 200

-- Reads them into `fair`, of which only `base` and `needs_ack` are known.
local function read_fair_limits(fair)
  local control = fair.base .. 'control'
  local names = { 'key_concurrency', 'key_interval_us', 'key_burst', 'has_key_limits', 'counting' }
  local found = redis.call('HMGET', control, unpack(names))
  fair.concurrency, fair.interval_us, fair.burst =
    number_in(found[1]), number_in(found[2]), number_in(found[3])
  fair.has_own, fair.is_counting = found[4], found[5]
  fair.counts = fair.concurrency or fair.has_own
  fair.has_rate = fair.interval_us or fair.has_own
  fair.is_limited = fair.counts or fair.has_rate
  fair.keys = {}
end

local function limits_of_key(fair, text)
  local paused, concurrency, interval_us, burst = string.match(text or '', '^(%S+) (%S+) (%S+) (%S+)$')
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
        local latest_us = fair.now_us + state.burst * state.interval_us
        -- It is later if the clock was set.
        state.tat_us = math.min(latest_us, math.max(fair.now_us, tonumber(tats[i]) or 0))
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

-- Notes that a key waits for its rate, if it does.
local function set_alarm(fair, key)
  local state = fair.keys[key]
  if state.interval_us and token_of_key_us(state) > fair.now_us then
    redis.call('ZADD', fair.base .. 'alarms', string.format('%.0f', math.ceil(token_of_key_us(state))), key)
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
local function ring_alarms(fair)
  if fair.has_rate then
    for _, key in ipairs(take_past(fair, 'alarms')) do
      unlimit(fair.base, key)
    end
    take_past(fair, 'tats')
  end
end

-- Notes that a message was handed out.
local function count_key(fair, consumer, tag, stored, start)
  if not fair.is_limited then
    return
  end
  local key = fair_key_of(stored, start)
  if not fair.keys[key] then
    read_keys(fair, { key })
  end
  local state = fair.keys[key]
  if fair.counts and fair.needs_ack then
    state.active = state.active + 1
    fair.holders[#fair.holders + 1] = consumer .. '\30' .. tag
    fair.holders[#fair.holders + 1] = key
  end
  if state.interval_us then
    state.tat_us = state.tat_us + state.interval_us
    state.is_spent = true
  end
end

-- Writes what was handed out.
local function write_counts(fair)
  if #fair.holders > 0 then
    redis.call('HSET', fair.base .. 'unacked-keys', unpack(fair.holders))
    for i = 2, #fair.holders, 2 do
      redis.call('HINCRBY', fair.base .. 'active', fair.holders[i], '1')
    end
  end
  local tats = {}
  for key, state in pairs(fair.keys) do
    if state.is_spent then
      tats[#tats + 1] = string.format('%.0f', math.ceil(state.tat_us))
      tats[#tats + 1] = key
    end
  end
  if #tats > 0 then
    redis.call('ZADD', fair.base .. 'tats', unpack(tats))
  end
end

-- Microseconds until the first alarm; -1 if there is none.
local function until_alarm_us(fair)
  local first = fair.has_rate and redis.call('ZRANGE', fair.base .. 'alarms', 0, 0, 'WITHSCORES')[2]
  return first and math.max(1, math.ceil(tonumber(first) - fair.now_us)) or -1
end
