-- Reads some of the messages of a schedule, in due order or from the last one on. Writes nothing.
--
-- KEYS[1]  schedule, or the index of an archive, which has times and names too (include/archive.lua)
-- KEYS[2]  messages of it, or what else there is for each name: the heads of an archive
-- ARGV     see below, by their names; then texts. Messages that contain none of these are left out, unless
--          there are no texts
--
-- Returns  1 when there are no more; then for each: the name that it has in the schedule, due time, message
--          as it is stored (nil: there is none). In place of some that are left out, one after the other, the
--          last of these, and in place of its message how many they are

-- include: contains

local
  -- From which due time on, ms since the epoch with a fraction, or "-inf".
  from_ms,
  -- Of those due at that very time, only what comes after this name ("": all of them).
  after_name,
  -- Before which due time, ms since the epoch with a fraction, or "+inf".
  before_ms,
  -- Of those due at that very time, also what comes before this name ("": none of them).
  before_name,
  -- "1": read from the last one on.
  from_last,
  -- How many at most.
  count,
  -- How many bytes at most are read. One message alone may have more.
  byte_limit,
  -- How many bytes of each are returned, from its beginning ("": all).
  longest = unpack(ARGV)

local texts = { unpack(ARGV, 9) }
from_last, count, byte_limit = from_last == '1', tonumber(count), tonumber(byte_limit)
longest = tonumber(longest)

-- Redis sorts by bytes, Lua by the server's locale.
local function comes_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- How many messages are due before a time, or at that time and have a name that comes before `name`, or is
-- the same if it counts, too. The name may be removed by now: so its position is found by binary search, not
-- by looking it up.
local function count_before(time, name, also_same)
  local first = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. time)
  local last = name == '' and first or redis.call('ZCOUNT', KEYS[1], '-inf', time)
  while first < last do
    local middle = math.floor((first + last) / 2)
    local other = redis.call('ZRANGE', KEYS[1], middle, middle)[1]
    if comes_before(other, name) or (also_same and other == name) then
      first = middle + 1
    else
      last = middle
    end
  end
  return first
end

-- Another program may have written messages that are due at -inf.
local is_from_first = from_ms == '-inf' and after_name == ''
local first = is_from_first and 0 or count_before(from_ms, after_name, true)
local stop = before_ms == '+inf' and redis.call('ZCARD', KEYS[1])
  or count_before(before_ms, before_name, false)

local reply, bytes, left = { 1 }, 0, stop - first
if left <= 0 then
  return reply
end
local start = from_last and math.max(first, stop - count) or first
local rows = redis.call('ZRANGE', KEYS[1], start, math.min(start + count, stop) - 1, 'WITHSCORES')
local left_out, last_left_out = 0, nil

local function add(i, stored)
  reply[#reply + 1] = rows[i]
  reply[#reply + 1] = rows[i + 1]
  reply[#reply + 1] = stored
end

local function add_left_out()
  if left_out > 0 then
    add(last_left_out, left_out)
    left_out = 0
  end
end

for n = 1, #rows - 1, 2 do
  local i = from_last and #rows - n or n
  local stored = redis.call('HGET', KEYS[2], rows[i])
  bytes = bytes + (stored and #stored or 0)
  if bytes > byte_limit and n > 1 then
    break
  end
  if stored and not contains_any(stored, texts) then
    left_out, last_left_out = left_out + 1, i
  else
    add_left_out()
    add(i, stored and longest and string.sub(stored, 1, longest) or stored)
  end
  left = left - 1
end
add_left_out()
reply[1] = left > 0 and 0 or 1
return reply
