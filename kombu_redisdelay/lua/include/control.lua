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

-- To be called when one of them may have gone. What takes have noted of a rate goes with it.
local function remove_unused(control)
  local found, has, is_used = redis.call('HMGET', control, unpack(LIMITS)), {}, false
  for i, name in ipairs(LIMITS) do
    has[name] = found[i]
    is_used = is_used or found[i]
  end
  if not is_used then
    redis.call('DEL', control)
    return
  end
  if not has.interval_us then
    redis.call('HDEL', control, 'full_at_us', 'watcher', 'watched_us')
  end
  if not has.fair or not (has.key_interval_us or has.has_key_limits) then
    redis.call('HDEL', control, 'key_watcher', 'key_watched_us')
  end
end
