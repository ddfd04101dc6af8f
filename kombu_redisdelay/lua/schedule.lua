-- Publishes a message with a due time: to the schedule, or to its ready list if that time has come.
--
-- KEYS[1]  ready list of the message's priority step
-- KEYS[2]  wake list
-- KEYS[3]  schedule
-- KEYS[4]  messages
-- KEYS[5+] the queue's other keys, when it expires
-- ARGV[1]  message
-- ARGV[2]  x-expires of the queue, ms (0: none)
-- ARGV[3]  message id
-- ARGV[4]  suffix that makes the id unique if it is taken
-- ARGV[5]  due time, ms since the epoch (0: none)
-- ARGV[6]  delay, ms from now; the later of both counts
-- ARGV[7]  priority step
--
-- Keeps: the message is in exactly one place, scheduled or ready.

-- include: expect
-- include: clock
-- include: wake
-- include: expire
-- include: schedule

local now_ms = clock_ms()
local due_ms = math.max(tonumber(ARGV[5]), now_ms + tonumber(ARGV[6]))
if due_ms > now_ms then
  expect_schedule(KEYS[3], KEYS[4])
  schedule(KEYS[3], KEYS[4], KEYS[2], ARGV[3], ARGV[4], due_ms, ARGV[7] .. ':' .. ARGV[1])
else
  redis.call('LPUSH', KEYS[1], ARGV[1])
  wake(KEYS[2])
end
expire(tonumber(ARGV[2]), KEYS)
