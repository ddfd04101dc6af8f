-- How often a message was delivered travels in front of what its publisher wrote, as the first member of
-- the JSON object, put in and replaced as text: cjson would turn [] into {} and round large integers.
-- A stock consumer does not look at the member. What is not an object cannot carry it, and stays as it is.
-- Nothing else is touched, whitespace neither: taken out again, it leaves what the publisher wrote.
local COUNTED = '^(%s*{)"redisdelay%-deliveries": ?(%d+), ?'

-- `start` is where the payload begins, if something is in front of it.
local function deliveries(payload, start)
  local _, count = string.match(payload, COUNTED, start)
  return tonumber(count) or 0
end

local function without_deliveries(payload)
  local _, last, opening = string.find(payload, COUNTED)
  return last and opening .. string.sub(payload, last + 1) or payload
end

local function with_deliveries(payload, count)
  local plain = without_deliveries(payload)
  local _, last = string.find(plain, '^%s*{')
  if not last or not string.find(plain, '^%s*"', last + 1) then
    return payload
  end
  local opening, members = string.sub(plain, 1, last), string.sub(plain, last + 1)
  return opening .. '"redisdelay-deliveries": ' .. count .. ', ' .. members
end
