-- include: stored

-- Our part of a message: the first members of its JSON object, before those of the publisher's client.
-- Each but the last two is a whole number, each is optional, and they stand in this order, that of MEMBERS:
--   redisdelay-deliveries  how many deliveries have failed
--   redisdelay-lost        how many of these ended with their consumer, which may have held others: it is
--                          not known which message has caused that. The others are its own failures
--   redisdelay-due         from when on it may be delivered, ms since the epoch. Our publisher writes it, by
--                          its own clock; a stock publisher does not
--   redisdelay-unknown     since when it waits for a worker that knows its task, ms since the epoch
--   redisdelay-key         its weight and its key in a fair queue (fair_key.lua)
--   redisdelay-unique      its key: a list of three texts, which no script changes (unique.lua)
-- They are inserted and replaced as text, because cjson would turn [] into {} and round large integers. A
-- stock consumer ignores them. A payload that is not an object cannot carry them, and stays as it is. Nothing
-- else changes, not even whitespace. broker/members.py reads and writes the same.
--
-- `start` is where the payload begins in `stored` (see stored.lua). The functions do not cut it out first: a
-- copy of a large message takes milliseconds.
local MEMBERS = { 'deliveries', 'lost', 'due', 'unknown' }
local IS_MEMBER = { deliveries = true, lost = true, due = true, unknown = true }
local MEMBER = '^"redisdelay%-(%l+)": ?(%d+), ?()'

-- A count of more digits was written by another program. Longer numbers lose digits in Lua.
local LONGEST_COUNT, GREATEST_COUNT = 9, 999999999

-- Returns the digits of each member by its name, the index of the opening brace (nil: it is not an object),
-- and that of the publisher's first character.
local function members_of(stored, start)
  local _, brace = string.find(stored, '^%s*{', start)
  local found, rest = {}, brace and brace + 1
  while rest do
    local name, digits, behind = string.match(stored, MEMBER, rest)
    if not IS_MEMBER[name] then
      break
    end
    found[name], rest = digits, behind
  end
  return found, brace, rest
end

local function as_count(digits)
  return digits and (#digits <= LONGEST_COUNT and tonumber(digits) or GREATEST_COUNT) or 0
end

local function deliveries(stored, start)
  return as_count(members_of(stored, start).deliveries)
end

-- Most messages have none. It costs one look then, for every message that is handed out.
local function losses(stored, start)
  if not string.find(stored, '^%s*{"redisdelay%-[dl][eo]', start) then
    return 0
  end
  return as_count(members_of(stored, start).lost)
end

-- The message with other members: `changes` has the new value of each, or false to leave it out. A message
-- without a due time gets none. The result begins at `from`: 1 for all that is stored, or where the payload
-- begins.
local function with_members(stored, from, changes)
  local found, brace, rest = members_of(stored, stored_start(stored))
  if not brace or not string.find(stored, '^%s*"', rest) then
    return string.sub(stored, from)
  end
  local texts = { string.sub(stored, from, brace) }
  for _, name in ipairs(MEMBERS) do
    local value = changes[name]
    if value == nil or (name == 'due' and not found.due) then
      value = found[name]
    elseif value then
      value = string.format('%.0f', value)
    end
    if value then
      texts[#texts + 1] = '"redisdelay-' .. name .. '": ' .. value .. ', '
    end
  end
  texts[#texts + 1] = string.sub(stored, rest)
  return table.concat(texts)
end
