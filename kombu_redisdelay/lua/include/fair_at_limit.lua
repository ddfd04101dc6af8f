-- What an operator allows for the keys of a fair queue, for all consumers together, and whether a key may be
-- served. The hash `control` has
--   key_concurrency                  how many messages of a key may be unacked
--   key_interval_us, key_burst       a rate for each key, as in limits.lua
--   has_key_limits                   some keys have limits of their own
--   counting                         what is unacked is being counted (count_keys.lua): nothing is taken
--   key_watcher, key_watched_us      the consumer that comes at the first alarm (fair_limits.lua)
-- and there are
--   key-limits   hash: key -> since when it is paused, ms since the epoch, concurrency, interval and burst,
--                separated by spaces; 0 is as for every key
--   tats         zset: key -> when it may have `burst` messages at once again, microseconds since the epoch

-- include: number

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
  local unacked = fair.counts and redis.call('HMGET', fair.base .. 'active', unpack(keys)) or {}
  local rate_clocks = fair.has_rate and redis.call('ZMSCORE', fair.base .. 'tats', unpack(keys)) or {}
  for i, key in ipairs(keys) do
    if not fair.keys[key] then
      local state = limits_of_key(fair, own[i])
      state.unacked = tonumber(unacked[i]) or 0
      if state.interval_us then
        local latest_us = fair.now_us + state.burst * state.interval_us
        local rate_clock_us = tonumber(rate_clocks[i]) or 0
        -- It is later if the clock was set, or the rate was lower. It is written anew: else it would be too
        -- late again the next time, and the key would wait until the old time is over.
        state.is_put_right = rate_clock_us > latest_us
        state.rate_clock_us = math.min(latest_us, math.max(fair.now_us, rate_clock_us))
      end
      fair.keys[key] = state
    end
  end
end

-- When the rate of a key allows it the next message.
local function token_of_key_us(state)
  return state.rate_clock_us - (state.burst - 1) * state.interval_us
end

-- Whether a key may not be served now.
local function is_at_limit(fair, key)
  local state = fair.keys[key]
  if not state then
    return false
  elseif state.is_paused then
    return true
  elseif fair.needs_ack and state.concurrency and state.unacked >= state.concurrency then
    return true
  end
  return state.interval_us and token_of_key_us(state) > fair.now_us or false
end
