-- Moves scheduled messages that have no due time to the dead letters: nothing else would ever look at them.
-- Such messages exist if a part of the schedule was deleted. Also forgets some of the duplicates that do not
-- exist any more.
--
-- KEYS[1]  schedule
-- KEYS[2]  messages
-- KEYS[3]  dead
-- KEYS[4]  duplicates
-- ARGV[1]  cursor: "0" to begin, then what the last call returned
-- ARGV[2]  how many messages to look at, roughly
-- ARGV[3]  how many dead letters the queue keeps
--
-- Returns  cursor ("0": there is nothing left to look at), how many were found, how many older dead letters
--          were dropped for them, the briefs of some that were found (include/brief.lua)
--
-- Keeps: a message is in exactly one place.

-- include: base
-- include: expect
-- include: clock
-- include: expire
-- include: stored
-- include: members
-- include: duplicates
-- include: brief
-- include: dead
-- include: history
-- include: wake
-- include: unique

if ARGV[1] == '0' then
  forget_duplicates(KEYS[4], KEYS[2], ARGV[2])
  -- In a queue with x-expires, consumers keep the schedule alive. Its duplicates must live as long.
  expire(redis.call('PTTL', KEYS[1]), { KEYS[4] })
end
if ARGV[1] == '0' and redis.call('HLEN', KEYS[2]) == redis.call('ZCARD', KEYS[1]) then
  return { '0', 0, 0, {} }
end

expect_list(KEYS[3])
local base = base_of(KEYS[1])
local found, dropped, briefs = 0, 0, {}
local scan = redis.call('HSCAN', KEYS[2], ARGV[1], 'COUNT', ARGV[2])
for i = 1, #scan[2], 2 do
  local id, stored = scan[2][i], scan[2][i + 1]
  if not redis.call('ZSCORE', KEYS[1], id) then
    local count = deliveries(stored, stored_start(stored))
    redis.call('HDEL', KEYS[2], id)
    dropped = dropped + add_dead_letter(KEYS[3], tonumber(ARGV[3]), count, 'no due time', stored)
    found = found + 1
    add_brief(briefs, stored)
    forget_unique(base, stored, clock_us() / 1000)
  end
end
note(KEYS[3], 'dead', found)
return { scan[1], found, dropped, briefs }
