-- Finds out of which tasks messages wait for a worker that knows them (include/unknown.lua).
--
-- KEYS[1]  unknown
-- KEYS[2]  messages
-- ARGV[1]  with which entry it begins ("": with the first)
-- ARGV[2]  how many pairs of a task and a priority step at most
-- ARGV[3]  "1": to forget the entries it comes across whose message does not wait any more
--
-- Returns  with what to begin the next time ("": there are no more); then for each pair the task, the step,
--          and since when the oldest message waits, ms since the epoch, as text ("": not found)
--
-- Keeps: no message is touched.

-- include: unknown

-- Entries that are looked at, of each pair and together.
local LOOKED_AT, LOOKED_AT_IN_ALL = 20, 200
local looked_at = 0
-- A message is read whole to see whether it waits, so a large one is taken at its word.
local LARGE = 16 * 1024

local function waits(since_ms, member)
  if not member then
    return false
  end
  if redis.call('HSTRLEN', KEYS[2], member) > LARGE then
    return true
  end
  return waits_since(redis.call('HGET', KEYS[2], member), since_ms)
end

-- Whether any message is listed that begins with `prefix`, and since when the oldest of them waits, if one of
-- the first does.
local function oldest(prefix)
  local entries = first_listed(KEYS[1], prefix, LOOKED_AT)
  for index, entry in ipairs(entries) do
    local since_ms, member = time_and_member(entry)
    looked_at = looked_at + 1
    if looked_at > LOOKED_AT_IN_ALL then
      return true, nil
    end
    if waits(since_ms, member) then
      return true, since_ms
    end
    if ARGV[3] == '1' then
      redis.call('ZREM', KEYS[1], entry)
    end
    if index == #entries and index < LOOKED_AT then
      return false, nil
    end
  end
  return #entries > 0, nil
end

local from = ARGV[1] == '' and '-' or '[' .. ARGV[1]
local reply = { '' }
for _ = 1, tonumber(ARGV[2]) do
  local entry = redis.call('ZRANGEBYLEX', KEYS[1], from, '+', 'LIMIT', 0, 1)[1]
  if not entry then
    reply[1] = ''
    break
  end
  local task, step = string.match(entry, '^([^\31]*)\31(%d+)\31')
  if task then
    local prefix = listed_under(task, step)
    local any, since_ms = oldest(prefix)
    if any then
      reply[#reply + 1] = task
      reply[#reply + 1] = step
      reply[#reply + 1] = since_ms or ''
    end
    reply[1] = string.sub(prefix, 1, -2) .. '\32'
  else
    -- Another program has written it.
    reply[1] = entry .. '\0'
  end
  from = '[' .. reply[1]
end
return reply
