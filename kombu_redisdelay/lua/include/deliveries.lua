-- A message carries the number of its deliveries as the first member of its JSON object, before what the
-- publisher wrote. The member is inserted and replaced as text, because cjson would turn [] into {} and round
-- large integers. A stock consumer ignores it. A payload that is not an object cannot carry it, and stays as
-- it is. Nothing else changes, not even whitespace: without the member, the payload is what the publisher
-- wrote.
--
-- `start` is where the payload begins in `stored` (see stored.lua). The functions do not cut it out first: a
-- copy of a large message takes milliseconds.
local COUNTED = '^(%s*{)"redisdelay%-deliveries": ?(%d+), ?'

local function deliveries(stored, start)
  local _, count = string.match(stored, COUNTED, start)
  return tonumber(count) or 0
end

-- Splits what the publisher wrote: returns the text before the count, and the index at which the rest begins.
local function opening_and_rest(stored, start)
  local _, last, opening = string.find(stored, COUNTED, start)
  if not last then
    _, last, opening = string.find(stored, '^(%s*{)', start)
  end
  return opening or '', last and last + 1 or start
end

-- The payload with a new count.
local function with_deliveries(stored, start, count)
  local opening, rest = opening_and_rest(stored, start)
  if opening == '' or not string.find(stored, '^%s*"', rest) then
    return string.sub(stored, start)
  end
  return opening .. '"redisdelay-deliveries": ' .. count .. ', ' .. string.sub(stored, rest)
end
