-- Removes ready messages of one list. Redis looks for each from one end of the list: in the middle of a
-- million messages, that takes 0.1 s.
--
-- KEYS[1]  ready list, or list of a key in a fair queue (include/fair.lua)
-- KEYS[2]  wake zset
-- ARGV     for each message: 1 to look from the end where publishers put messages, or -1 from the other end;
--          then the message
--
-- Returns  for each message 1 if it was ready, else 0
--
-- Keeps: a message that is taken in the meantime is in another place by now, and is left there.

-- include: clock
-- include: history
-- include: unique
-- include: fair_remove

local base = base_of(KEYS[2])
local has_keys = has_unique(base)
local done, removed = {}, 0
for i = 1, #ARGV, 2 do
  local count = redis.call('LREM', KEYS[1], ARGV[i], ARGV[i + 1])
  table.insert(done, count)
  removed = removed + count
  if count > 0 and has_keys then
    forget_unique(base, ARGV[i + 1], clock_us() / 1000)
  end
end
note(KEYS[2], 'other', -removed)
forget_sorted_in(base, KEYS[1], removed)
return done
