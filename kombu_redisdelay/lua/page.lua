-- Reads some of the messages of a schedule, in due order. Writes nothing.
--
-- KEYS[1]  schedule
-- KEYS[2]  messages
-- ARGV[1]  from which due time on, ms since the epoch with a fraction, or "-inf"
-- ARGV[2]  of those due at that very time, only what comes after this name ("": all of them)
-- ARGV[3]  before which due time, ms since the epoch with a fraction, or "+inf"
-- ARGV[4]  how many at most
-- ARGV[5]  how many bytes at most; one message alone may have more
--
-- Returns  1 when there are no more; then for each: the name that it has in the schedule, due time, message
--          as it is stored (nil: there is none)

local from, after = ARGV[1], ARGV[2]
local count, byte_limit = tonumber(ARGV[4]), tonumber(ARGV[5])

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

local first = 0
if from ~= '-inf' then
  first = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. from)
end
if after ~= '' then
  -- This name may be gone by now. So its place is found by binary search, not by looking it up.
  local last = redis.call('ZCOUNT', KEYS[1], '-inf', from)
  while first < last do
    local middle = math.floor((first + last) / 2)
    if comes_before(after, redis.call('ZRANGE', KEYS[1], middle, middle)[1]) then
      last = middle
    else
      first = middle + 1
    end
  end
end
local stop = ARGV[3] == '+inf' and redis.call('ZCARD', KEYS[1])
  or redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[3])

local reply, bytes = { 1 }, 0
if first >= stop then
  return reply
end
local rows = redis.call('ZRANGE', KEYS[1], first, math.min(first + count, stop) - 1, 'WITHSCORES')
for i = 1, #rows, 2 do
  bytes = bytes + redis.call('HSTRLEN', KEYS[2], rows[i])
  if bytes > byte_limit and i > 1 then
    break
  end
  reply[#reply + 1] = rows[i]
  reply[#reply + 1] = rows[i + 1]
  reply[#reply + 1] = redis.call('HGET', KEYS[2], rows[i])
  first = first + 1
end
reply[1] = first < stop and 0 or 1
return reply
