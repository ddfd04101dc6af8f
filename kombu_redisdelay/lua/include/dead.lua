-- include: clock
-- include: members

-- A dead letter is one line "<when, ms> <deliveries> <priority step> <why>" and, below it, the bytes that
-- the publisher wrote. Only the latest `limit` are kept. Returns how many older ones were dropped.
local function add_dead_letter(dead_key, limit, count, reason, stored)
  local why = table.concat({ clock_ms(), count, stored_step(stored), reason }, ' ')
  local ours = { deliveries = false, lost = false, unknown = false }
  local payload = with_members(stored, stored_start(stored), ours)
  local letter = why .. '\n' .. payload
  local dropped = redis.call('LPUSH', dead_key, letter) - limit
  if dropped <= 0 then
    return 0
  end
  redis.call('LTRIM', dead_key, 0, limit - 1)
  return dropped
end

-- Priority step and message of a dead letter. What another program has written there is a message as it is;
-- broker/dead.py tells it in the same way.
local function dead_step_and_payload(letter)
  local when, deliveries, step, start = string.match(letter, '^(%d+) (%d+) (%d+) [^\n]*\n()')
  if start and #when <= 18 and #deliveries <= 18 and #step <= 9 then
    return step, string.sub(letter, start)
  end
  return '0', letter
end
