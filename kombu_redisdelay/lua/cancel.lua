-- Removes the scheduled messages with some ids. Bounded: call it until all ids are done.
--
-- KEYS[1]  schedule
-- KEYS[2]  messages
-- KEYS[3]  duplicates
-- ARGV[1]  how many messages at most
-- ARGV[2]  how many bytes, roughly
-- ARGV[3+] message ids
--
-- Returns  how many of the ids are done; then for each of these, and for the next one, how many messages were
--          removed
--
-- Keeps: a message that is delivered in the meantime is in another place by now, and is left there.

-- include: clock
-- include: duplicates
-- include: history
-- include: unique

local messages_left, bytes_left = tonumber(ARGV[1]), tonumber(ARGV[2])
local base = base_of(KEYS[1])
local has_keys = has_unique(base)
local reply = { 0 }

local function remove(member)
  messages_left = messages_left - 1
  bytes_left = bytes_left - redis.call('HSTRLEN', KEYS[2], member)
  -- Only a queue with keys needs the texts.
  local stored = has_keys and redis.call('HGET', KEYS[2], member)
  local removed = unschedule(KEYS[1], KEYS[2], KEYS[3], member)
  note(KEYS[1], 'other', -removed)
  if stored then
    bytes_left = bytes_left - forget_unique(base, stored, clock_us() / 1000)
  end
  return removed
end

for i = 3, #ARGV do
  local member, removed = ARGV[i], 0
  while member and messages_left > 0 and bytes_left > 0 do
    removed = removed + remove(member)
    member = duplicates_of(KEYS[3], ARGV[i], '', 1)[1]
  end
  reply[#reply + 1] = removed
  if member then
    break
  end
  reply[1] = i - 2
end
return reply
