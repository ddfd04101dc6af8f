-- Gives scheduled messages that have lost their due time the one that they say themselves. Those that say
-- none are moved to the dead letters: nothing else would ever look at them. Such messages exist if a part of
-- the schedule was deleted. Also forgets some of the duplicates that do not exist any more.
--
-- KEYS[1]  schedule
-- KEYS[2]  messages
-- KEYS[3]  dead:index
-- KEYS[4]  duplicates
-- ARGV[1]  cursor: "0" to begin, then what the last call returned
-- ARGV[2]  how many messages to look at, roughly
-- ARGV[3]  how many dead letters the queue keeps
--
-- Returns  cursor ("0": there is nothing left to look at), how many are dead letters now, how many older
--          ones were dropped for them, the briefs of some of them (include/brief.lua), and how many have a
--          due time again
--
-- Keeps: a message is in exactly one place.

-- include: expire
-- include: leave
-- include: wake

if ARGV[1] == '0' then
  forget_duplicates(KEYS[4], KEYS[2], ARGV[2])
  -- In a queue with x-expires, consumers keep the schedule alive. Its duplicates must live as long.
  expire(redis.call('PTTL', KEYS[1]), { KEYS[4] })
end
if ARGV[1] == '0' and redis.call('HLEN', KEYS[2]) == redis.call('ZCARD', KEYS[1]) then
  return { '0', 0, 0, {}, 0 }
end

-- include: dead_letter
-- include: history

-- A longer number is no time (broker/members.py).
local DIGITS = 15

local base, archive = base_of(KEYS[1]), archive_of_dead(KEYS[3])
local queue = { base = base, schedule = KEYS[1], messages = KEYS[2], duplicates = KEYS[4] }
local dead, dropped, briefs, scheduled = 0, 0, {}, 0

local function make_dead(id, stored)
  local message = scheduled_message(queue, id, stored)
  leave(message)
  dropped = dropped
    + add_dead_letter(archive, {
      -- Without what tells duplicates apart.
      id = string.match(id, '^[^' .. DUPLICATE .. ']*'),
      tag = '-',
      failures = deliveries(stored, message.start),
      kind = 'no-due-time',
      details = '{"text": "no due time"}',
      stored = stored,
    }, ARGV[3])
  dead = dead + 1
  add_brief(briefs, stored)
  is_over(message, clock_us() / 1000)
end

local scan = redis.call('HSCAN', KEYS[2], ARGV[1], 'COUNT', ARGV[2])
for i = 1, #scan[2], 2 do
  local id, stored = scan[2][i], scan[2][i + 1]
  if not redis.call('ZSCORE', KEYS[1], id) then
    local due = members_of(stored, stored_start(stored)).due
    if due and #due <= DIGITS then
      -- Removed first, so that a full Redis allows it.
      redis.call('ZREM', KEYS[1], id)
      scheduled = scheduled + redis.call('ZADD', KEYS[1], due, id)
    else
      make_dead(id, stored)
    end
  end
end
if scheduled > 0 then
  wake(base .. 'wake')
end
note(KEYS[3], 'dead', dead)
return { scan[1], dead, dropped, briefs, scheduled }
