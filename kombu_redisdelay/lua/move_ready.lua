-- Moves some messages out of one list: for good, into the schedule, or to where workers look. Redis looks for
-- each from one end of the list: in the middle of a million messages, that takes 0.1 s.
--
-- KEYS[1]  ready list, list of a key in a fair queue (include/fair.lua), or a list where no worker looks
-- KEYS[2]  wake zset
-- KEYS[3]  schedule
-- KEYS[4]  messages
-- KEYS[5]  duplicates
-- KEYS[6]  ready list of step 0
-- ARGV[1]  "remove"; "schedule": their producer does not schedule, or a stock worker gave back what it held
--          in memory; or "bring back": no worker looks there, so each goes to the schedule or to the ready
--          list of its step
-- ARGV[2]  priority step of the messages
-- ARGV[3]  separator between a queue's name and a priority step
-- ARGV[4+] for each message: 1 to look from the end where publishers put messages, or -1 from the other end;
--          the message; and unless it is removed the message as it is to be written ("": as it is); its id;
--          its due time, ms since the epoch, with a fraction ("": it is ready); "1" if a task has published
--          itself again, as retry() does
--
-- Returns  for each message 1 if it was there, else 0
--
-- Keeps: the message is in exactly one place, or removed. A message that is taken in the meantime is in
-- another place by now, and is left there.

-- include: arrive
-- include: fair_remove
-- include: history

local how = ARGV[1]
local args_per_message = how == 'remove' and 2 or 6
local queue = {
  base = base_of(KEYS[2]),
  wake = KEYS[2],
  schedule = KEYS[3],
  messages = KEYS[4],
  duplicates = KEYS[5],
  ready = KEYS[6],
  separator = ARGV[3],
  expires_ms = 0,
}
local now_ms = clock_us() / 1000

local function arrive(payload, text, id, due_ms, is_continued)
  local message = other_message(queue, ARGV[2] .. ':' .. (text == '' and payload or text), id)
  if due_ms == '' then
    becomes_ready(message, 'tail', payload, now_ms)
    wake(queue.wake)
  else
    local stored = with_members(message.stored, 1, { due = tonumber(due_ms) })
    becomes_scheduled(message, id, due_ms, stored, now_ms, is_continued == '1' and 'a' or 's')
  end
end

if how ~= 'remove' then
  expect_schedule(queue.schedule, queue.messages)
  redis.call('ZCARD', queue.duplicates)
end
if how == 'bring back' then
  expect_list(list_in(queue, ARGV[2]), 'LPUSH')
end
local reply, moved = {}, 0
for i = 4, #ARGV, args_per_message do
  local was_there = redis.call('LREM', KEYS[1], ARGV[i], ARGV[i + 1])
  if was_there == 1 and how == 'remove' then
    is_over(other_message(queue, ARGV[i + 1]), now_ms)
  elseif was_there == 1 then
    arrive(unpack(ARGV, i + 1, i + args_per_message - 1))
  end
  reply[#reply + 1], moved = was_there, moved + was_there
end
-- What is moved to the schedule changes the length of the queue only if it was not counted where it was.
note(queue.wake, 'other', how == 'remove' and -moved or how == 'bring back' and moved or 0)
forget_sorted(queue.base, KEYS[1], moved)
return reply
