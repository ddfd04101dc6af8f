-- Moves a message that was taken before it is due from the unacked hash to the schedule. It was on a ready
-- list, because its producer does not schedule, or because a stock worker gave back what it held in memory.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  schedule
-- KEYS[3]  messages
-- KEYS[4]  wake zset
-- KEYS[5]  duplicates
-- ARGV[1]  delivery tag
-- ARGV[2]  message id
-- ARGV[3]  due time, ms since the epoch, with a fraction
-- ARGV[4]  x-expires of the queue, ms (0: none)
--
-- Keeps: the message is in exactly one place, unacked before and scheduled after.

-- include: arrive
-- include: history

local queue = queue_to_schedule(ARGV[4])
expect_schedule(queue.schedule, queue.messages)
local message = unacked_message(queue, ARGV[1])
if message then
  local parked = with_members(message.stored, 1, { due = tonumber(ARGV[3]) })
  leave(message)
  becomes_scheduled(message, ARGV[2], ARGV[3], parked, clock_us() / 1000)
  note(queue.wake, 'other', 1)
end
