-- Removes scheduled messages that the caller has read before.
--
-- KEYS[1]  schedule
-- KEYS[2]  messages
-- KEYS[3]  duplicates
-- ARGV     for each: the name that it has in the schedule, the message as it is stored
--
-- Returns  for each: 1 if it was removed; 0 if it is not scheduled any more, or it is not the same message
--
-- Keeps: a message that is delivered in the meantime is in another place by now, and is left there.

-- include: clock
-- include: duplicates
-- include: history
-- include: unique

local base = base_of(KEYS[1])
local reply, removed, has_keys = {}, 0, has_unique(base)
for i = 1, #ARGV, 2 do
  local same = redis.call('HGET', KEYS[2], ARGV[i]) == ARGV[i + 1]
  if same then
    removed = removed + unschedule(KEYS[1], KEYS[2], KEYS[3], ARGV[i])
    if has_keys then
      forget_unique(base, ARGV[i + 1], clock_us() / 1000)
    end
  end
  reply[#reply + 1] = same and 1 or 0
end
note(KEYS[1], 'other', -removed)
return reply
