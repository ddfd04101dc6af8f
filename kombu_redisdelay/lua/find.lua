-- Reads the scheduled messages with an id. Writes nothing.
--
-- KEYS[1]  schedule, or the index of an archive (include/archive.lua)
-- KEYS[2]  messages of it
-- KEYS[3]  duplicates of it
-- ARGV[1]  message id
-- ARGV[2]  the last name that the call before returned ("": this is the first)
-- ARGV[3]  how many at most
-- ARGV[4]  how many bytes, roughly; one message may have more
--
-- Returns  the last name that was looked at ("": there are no more); then for each: the name that it has in
--          the schedule, due time, message as it is stored (nil: there is none)

-- include: duplicates

local id, after, count, byte_limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local members = duplicates_of(KEYS[3], id, after, count)
local more = #members == count
if after == '' then
  table.insert(members, 1, id)
end

local reply, bytes = { '' }, 0
for i, member in ipairs(members) do
  local stored, due_ms = redis.call('HGET', KEYS[2], member), redis.call('ZSCORE', KEYS[1], member)
  if due_ms then
    reply[#reply + 1] = member
    reply[#reply + 1] = due_ms
    reply[#reply + 1] = stored
    bytes = bytes + (stored and #stored or 0)
  end
  if (bytes >= byte_limit and i < #members) or (more and i == #members) then
    reply[1] = member
    break
  end
end
return reply
