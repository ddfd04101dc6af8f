-- A dead letter is one line "<when, ms> <deliveries> <priority step> <why>" and, below it, the bytes of
-- the message as they were.
local function bury(dead_key, deliveries, step, reason, payload)
  local why = table.concat({ clock_ms(), deliveries, step, reason }, ' ')
  redis.call('LPUSH', dead_key, why .. '\n' .. payload)
end
