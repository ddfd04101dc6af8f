-- Messages of a fair queue that were taken before messages of its keys were counted. Their consumers may not
-- know of the limit yet, and ack by HDEL, which frees no permit of a key. So the takes look whether these
-- messages are still unacked.
--   earlier   zset: <consumer> \30 <delivery tag> -> when a take looks the next time, microseconds since the
--             epoch

-- include: fair_unacked

-- How many messages a take looks at.
local EARLIER_AT_ONCE = 50
-- The next look comes after a part of the time for which the message is unacked: so its permit is late by
-- this part at most, and a long task costs little.
local PART, SOONEST_US, LATEST_US = 16, 25000, 1000000

local function next_look_us(tag, now_us)
  local age_us = now_us - (tonumber(tag) or now_us)
  return string.format('%.0f', now_us + math.min(LATEST_US, math.max(SOONEST_US, age_us / PART)))
end

-- Frees the permits of those that are not unacked any more. To be called before the keys are read. Returns
-- how many messages it has looked at.
local function free_earlier(fair)
  if not fair.counts then
    return 0
  end
  local earlier = fair.base .. 'earlier'
  local first_us = tonumber(redis.call('ZRANGE', earlier, 0, 0, 'WITHSCORES')[2])
  fair.has_earlier = first_us ~= nil
  -- It is later if the clock was set.
  local was_set = first_us and first_us > fair.now_us + LATEST_US
  if not first_us or first_us > fair.now_us and not was_set then
    return 0
  end
  local latest_us = was_set and '+inf' or fair.now_us
  local found = redis.call('ZRANGEBYSCORE', earlier, '-inf', latest_us, 'LIMIT', 0, EARLIER_AT_ONCE)
  local settled, unacked = {}, {}
  for _, holder in ipairs(found) do
    local consumer, tag = string.match(holder, '^(.*)\30(.*)$')
    local hash = fair.base .. 'unacked:' .. (consumer or '')
    if consumer and redis.pcall('HEXISTS', hash, tag) == 1 then
      unacked[#unacked + 1], unacked[#unacked + 2] = next_look_us(tag, fair.now_us), holder
    else
      settled[#settled + 1] = holder
      release_key(fair.base, hash, tag or '')
    end
  end
  if #settled > 0 then
    redis.call('ZREM', earlier, unpack(settled))
  end
  if #unacked > 0 then
    -- A full Redis may refuse that: then the next take looks again.
    redis.pcall('ZADD', earlier, unpack(unacked))
  end
  return #found
end

-- When a consumer has to look the next time, because keys wait at their limits; nil if that is not needed.
local function look_at_earlier_us(fair)
  if not fair.has_earlier or redis.call('EXISTS', fair.base .. 'limited') == 0 then
    return nil
  end
  return tonumber(redis.call('ZRANGE', fair.base .. 'earlier', 0, 0, 'WITHSCORES')[2])
end
