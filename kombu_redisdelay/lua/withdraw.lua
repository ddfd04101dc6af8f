-- Removes the scheduled messages with some ids, and returns them. Most ids may be unknown here. Bounded: call
-- it until all ids are done.
--
-- KEYS[1]  schedule
-- KEYS[2]  messages
-- KEYS[3]  duplicates
-- ARGV[1]  how many bytes, roughly
-- ARGV[2]  how many duplicates of an id at most
-- ARGV[3+] message ids
--
-- Returns  how many of the ids are done; then the messages that were removed, as they were stored
--
-- Keeps: a message that is delivered in the meantime is in another place by now, and is left there. Of
-- several callers, one gets the message.

-- include: clock
-- include: duplicates
-- include: history
-- include: unique

local bytes_left, most_duplicates = tonumber(ARGV[1]), tonumber(ARGV[2])
local base = base_of(KEYS[1])
local has_duplicates, has_keys = redis.call('EXISTS', KEYS[3]) == 1, has_unique(base)
local reply = { 0 }

local function withdraw(member, is_listed)
  local stored = redis.call('HGET', KEYS[2], member)
  if stored then
    reply[#reply + 1] = stored
    bytes_left = bytes_left - #stored
  end
  if stored or is_listed then
    note(KEYS[1], 'other', -unschedule(KEYS[1], KEYS[2], KEYS[3], member))
  end
  if stored and has_keys then
    bytes_left = bytes_left - forget_unique(base, stored, clock_us() / 1000)
  end
end

for i = 3, #ARGV do
  withdraw(ARGV[i], false)
  local members = has_duplicates and duplicates_of(KEYS[3], ARGV[i], '', most_duplicates) or {}
  for _, member in ipairs(members) do
    if bytes_left <= 0 then
      return reply
    end
    withdraw(member, true)
  end
  if #members == most_duplicates then
    return reply
  end
  reply[1] = i - 2
  if bytes_left <= 0 then
    break
  end
end
return reply
