-- How often a message was delivered travels in front of what its publisher wrote, as the first member of
-- the JSON object, put in and replaced as text: cjson would turn [] into {} and round large integers.
-- A stock consumer does not look at the member. What is not an object cannot carry it, and stays as it is.
-- Nothing else is touched, whitespace neither: taken out again, it leaves what the publisher wrote.
--
-- `start` is where the payload begins in what is stored (see stored.lua). To cut it off first would cost
-- another string, which is milliseconds for a large one.
local COUNTED = '^(%s*{)"redisdelay%-deliveries": ?(%d+), ?'

local function deliveries(stored, start)
  local _, count = string.match(stored, COUNTED, start)
  return tonumber(count) or 0
end

-- What the publisher wrote, in two: what comes before the place for the count, and where the rest begins.
local function opening_and_rest(stored, start)
  local _, last, opening = string.find(stored, COUNTED, start)
  if not last then
    _, last, opening = string.find(stored, '^(%s*{)', start)
  end
  return opening or '', last and last + 1 or start
end

-- The payload, with another count.
local function with_deliveries(stored, start, count)
  local opening, rest = opening_and_rest(stored, start)
  if opening == '' or not string.find(stored, '^%s*"', rest) then
    return string.sub(stored, start)
  end
  return opening .. '"redisdelay-deliveries": ' .. count .. ', ' .. string.sub(stored, rest)
end
