-- A publisher writes from when on a message may be delivered, as the first member of its JSON object: in
-- whole milliseconds since the epoch, by its own clock. The count of deliveries goes before it (see
-- deliveries.lua). Like the count, it is read and replaced as text. A stock publisher does not write it.
local DUE = '^"redisdelay%-due": ?(%d+), ?'

-- The stored message with another time. A message that has none is returned as it is.
local function with_due(stored, due_ms)
  local _, start = opening_and_rest(stored, stored_start(stored))
  local _, last = string.find(stored, DUE, start)
  if not last then
    return stored
  end
  local member = string.format('"redisdelay-due": %.0f, ', due_ms)
  return string.sub(stored, 1, start - 1) .. member .. string.sub(stored, last + 1)
end
