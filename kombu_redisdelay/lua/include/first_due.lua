-- When the first message is due, in ms since the epoch with a fraction; nil if none is scheduled, or all wait
-- for their keys (unique.lua).
local function first_due(schedule_key)
  local score = redis.call('ZRANGE', schedule_key, '0', '0', 'WITHSCORES')[2]
  return score and score ~= 'inf' and tonumber(score) or nil
end

-- Thirty years: another program may have written any due time.
local FOREVER_US = 1e15

-- Microseconds until `due_ms`; -1 if it is nil. Rounded up: a consumer that comes earlier gets nothing.
local function until_us(due_ms, now_us)
  return due_ms and math.min(FOREVER_US, math.max(0, math.ceil(due_ms * 1000) - now_us)) or -1
end
