-- Moves ready messages of a list where no worker looks to where workers look.
--
-- KEYS[1]  the list
-- KEYS[2]  ready list of step 0
-- KEYS[3]  wake zset
-- KEYS[4]  schedule
-- KEYS[5]  messages
-- KEYS[6]  duplicates
-- ARGV     three for each message, in the order in which they are taken: the message; its id; its due time,
--          ms since the epoch, with a fraction ("": it is ready)
--
-- Returns  for each message 1 if it was in the list, else 0
--
-- Keeps: a message leaves its list only into another place, in the same step. One that is taken in the
-- meantime is left alone.

-- include: expect
-- include: members
-- include: schedule
-- include: history

local ARGS_PER_MESSAGE = 3

expect_list(KEYS[2], 'LPUSH')
expect_schedule(KEYS[4], KEYS[5])
redis.call('ZCARD', KEYS[6])
local reply, ready = {}, 0
for i = 1, #ARGV, ARGS_PER_MESSAGE do
  local message, id, due_ms = unpack(ARGV, i, i + ARGS_PER_MESSAGE - 1)
  local was_there = redis.call('LREM', KEYS[1], -1, message)
  if was_there == 1 and due_ms == '' then
    redis.call('LPUSH', KEYS[2], message)
    ready = ready + 1
  elseif was_there == 1 then
    local stored = with_members('0:' .. message, 1, { due = tonumber(due_ms) })
    schedule(KEYS[4], KEYS[5], KEYS[6], KEYS[3], id, due_ms, stored)
  end
  reply[#reply + 1] = was_there
end
if ready > 0 then
  wake(KEYS[3])
  note(KEYS[3], 'other', ready)
end
return reply
