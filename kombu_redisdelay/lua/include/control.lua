-- The hash `control` of a queue (limits.lua, fair_limits.lua) is there while anything is limited, or while it
-- is fair: a queue without it costs less.

-- The fields without which it need not be there.
local LIMITS = {
  'paused_ms',
  'interval_us',
  'concurrency',
  'fair',
  'key_concurrency',
  'key_interval_us',
  'has_key_limits',
}

-- To be called when one of them may have gone.
local function remove_unused(control)
  for _, found in pairs(redis.call('HMGET', control, unpack(LIMITS))) do
    if found then
      return
    end
  end
  redis.call('DEL', control)
end
