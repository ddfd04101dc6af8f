-- A dead letter is one line "<when, ms> <deliveries> <priority step> <why>" and, below it, the bytes that
-- the publisher wrote. Only the latest `limit` are kept. Returns how many older ones were dropped.
local function bury(dead_key, limit, count, reason, stored)
  local why = table.concat({ clock_ms(), count, stored_step(stored), reason }, ' ')
  local opening, rest = opening_and_rest(stored, stored_start(stored))
  local letter = why .. '\n' .. opening .. string.sub(stored, rest)
  local dropped = redis.call('LPUSH', dead_key, letter) - limit
  if dropped <= 0 then
    return 0
  end
  redis.call('LTRIM', dead_key, 0, limit - 1)
  return dropped
end

local function dead_step(letter)
  return string.match(letter, '^%d+ %d+ (%d+) ')
end

local function dead_payload(letter)
  return string.sub(letter, string.find(letter, '\n', 1, true) + 1)
end
