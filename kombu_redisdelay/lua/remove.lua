-- Removes scheduled messages: all those with some ids, or some that the caller has read before. Most ids may
-- be unknown here. Bounded: call it until all are done.
--
-- KEYS[1]  schedule
-- KEYS[2]  messages
-- KEYS[3]  duplicates
-- ARGV[1]  how many messages at most
-- ARGV[2]  how many bytes, roughly
-- ARGV[3]  "1" to return the messages
-- ARGV[4+] two for each: an id, and "" for all messages with it; or the name of one in the schedule, and this
--          message as it is stored: it stays if it is not the same any more
--
-- Returns  for each that is done, and for the next one, how many messages were removed; how many are done;
--          and if wanted the messages, as they were stored
--
-- Keeps: a message that is delivered in the meantime is in another place by now, and is left there. Of
-- several callers, one removes a message.

-- include: clock
-- include: history
-- include: leave

local messages_left, bytes_left, is_wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local queue = { base = base_of(KEYS[1]), schedule = KEYS[1], messages = KEYS[2], duplicates = KEYS[3] }
local has_duplicates = redis.call('EXISTS', KEYS[3]) == 1
local now_ms = clock_us() / 1000
local counts, done, all, removed, absent = {}, 0, 0, {}, {}

-- Returns how many were removed: 1 or 0.
local function remove(member, expected)
  local stored = redis.call('HGET', KEYS[2], member)
  if not stored then
    absent[#absent + 1] = member
    return 0
  elseif expected ~= '' and stored ~= expected then
    return 0
  end
  local message = scheduled_message(queue, member, stored)
  leave(message)
  messages_left, bytes_left = messages_left - 1, bytes_left - #stored - is_over(message, now_ms)
  if is_wanted then
    removed[#removed + 1] = stored
  end
  return 1
end

local function has_room()
  return messages_left > 0 and bytes_left > 0
end

-- Returns how many duplicates of an id were removed, and whether these were all.
local function remove_duplicates(id)
  local count, most = 0, messages_left + 1
  local members = duplicates_of(KEYS[3], id, '', most)
  for _, member in ipairs(members) do
    if not has_room() then
      return count, false
    end
    count = count + remove(member, '')
  end
  return count, #members < most
end

for i = 4, #ARGV, 2 do
  local id, expected = ARGV[i], ARGV[i + 1]
  local count, more, is_all = remove(id, expected), 0, true
  if expected == '' and has_duplicates then
    more, is_all = remove_duplicates(id)
  end
  counts[#counts + 1], all = count + more, all + count + more
  done = done + (is_all and 1 or 0)
  if not (is_all and has_room()) then
    break
  end
end
if #absent > 0 then
  -- Some may have lost their message.
  redis.call('ZREM', KEYS[1], unpack(absent))
  redis.call('ZREM', KEYS[3], unpack(absent))
end
note(KEYS[1], 'other', -all)
return { counts, done, removed }
