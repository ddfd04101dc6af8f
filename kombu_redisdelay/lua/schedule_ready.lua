-- Moves messages of one ready list into the schedule: their producer does not schedule, or a stock worker
-- gave back what it held in memory. Redis looks for each from one end of the list, as in remove_ready.lua.
--
-- KEYS[1]  ready list, or list of a key in a fair queue (include/fair.lua)
-- KEYS[2]  wake zset
-- KEYS[3]  schedule
-- KEYS[4]  messages
-- KEYS[5]  duplicates
-- KEYS[6]  ready list of step 0
-- ARGV[1]  priority step of the list
-- ARGV[2]  separator between a queue's name and a priority step
-- ARGV[3+] six for each message: 1 to look from the end where publishers put messages, or -1 from the other
--          end; the message; the message as it is to be written ("": as it is); its id; its due time, ms
--          since the epoch, with a fraction; "1" if a task has published itself again, as retry() does
--
-- Returns  for each message 1 if it was ready, else 0
--
-- Keeps: the message is in exactly one place, ready before and scheduled after. A message that is taken in
-- the meantime is in another place by now, and is left there.

-- include: base
-- include: expect
-- include: schedule
-- include: unique
-- include: fair_remove

local ARGS_PER_MESSAGE = 6

local base = base_of(KEYS[2])
local now_ms = clock_us() / 1000
local function list_of(step)
  return ready_key(KEYS[6], ARGV[2], step)
end

expect_schedule(KEYS[3], KEYS[4])
redis.call('ZCARD', KEYS[5])
local reply, moved = {}, 0
for i = 3, #ARGV, ARGS_PER_MESSAGE do
  local from, message, text, id, due_ms, is_continued = unpack(ARGV, i, i + ARGS_PER_MESSAGE - 1)
  local was_ready = redis.call('LREM', KEYS[1], from, message)
  if was_ready == 1 then
    local stored = ARGV[1] .. ':' .. (text == '' and message or text)
    stored = with_members(stored, 1, { due = tonumber(due_ms) })
    local member = schedule(KEYS[3], KEYS[4], KEYS[5], KEYS[2], id, due_ms, stored)
    move_to_schedule(base, stored, now_ms, member)
    hold_if_free(base, stored, is_continued == '1' and 'a' or 's', now_ms, member, list_of)
  end
  reply[#reply + 1] = was_ready
  moved = moved + was_ready
end
forget_sorted_in(base, KEYS[1], moved)
return reply
