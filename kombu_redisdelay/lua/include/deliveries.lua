-- How often a message was delivered travels in front of what its publisher wrote, as the first member of
-- the JSON object, put in and replaced as text: cjson would turn [] into {} and round large integers.
-- A stock consumer does not look at the member. What is not an object cannot carry it, and stays as it is.
local DELIVERIES = '"redisdelay-deliveries": '

local function deliveries(payload)
  return tonumber(string.match(payload, '^{"redisdelay%-deliveries": ?(%d+)')) or 0
end

local function with_deliveries(payload, count)
  local _, last = string.find(payload, '^{"redisdelay%-deliveries": ?%d+, ?')
  if not last then
    _, last = string.find(payload, '^%s*{%s*')
    if not last or string.sub(payload, last + 1, last + 1) ~= '"' then
      return payload
    end
  end
  return '{' .. DELIVERIES .. count .. ', ' .. string.sub(payload, last + 1)
end

local function without_deliveries(payload)
  local _, last = string.find(payload, '^{"redisdelay%-deliveries": ?%d+, ?')
  return last and '{' .. string.sub(payload, last + 1) or payload
end
