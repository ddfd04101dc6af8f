-- Gives a scheduled message another due time. The message itself says when it is due, so the caller has
-- rewritten it. If the new time has come, the message goes to its ready list.
--
-- KEYS[1]  schedule
-- KEYS[2]  messages
-- KEYS[3]  duplicates
-- KEYS[4]  ready list of step 0
-- KEYS[5]  wake zset
-- ARGV[1]  the name that it has in the schedule
-- ARGV[2]  the message as it is stored
-- ARGV[3]  the message as it is to be stored
-- ARGV[4]  due time, ms since the epoch, with a fraction
-- ARGV[5]  separator between a queue's name and a priority step
--
-- Returns  1 if it was done; 0 if it is not scheduled any more, or is not the same message
--
-- Keeps: the message is in exactly one place: scheduled before, scheduled or ready after. A message that is
-- delivered in the meantime is in another place by now, and is left alone.

-- include: clock
-- include: wake
-- include: expire
-- include: expect
-- include: stored
-- include: deliveries
-- include: due
-- include: duplicates

local member = ARGV[1]
if redis.call('HGET', KEYS[2], member) ~= ARGV[2] then
  return 0
end
local due_ms, now_ms = tonumber(ARGV[4]), clock_us() / 1000
local stored = with_due(ARGV[3], math.max(due_ms, now_ms))
if due_ms <= now_ms then
  local expires_ms = redis.call('PTTL', KEYS[1])
  local ready = ready_key(KEYS[4], ARGV[5], stored_step(stored))
  expect_list(ready)
  unschedule(KEYS[1], KEYS[2], KEYS[3], member)
  redis.call('LPUSH', ready, stored_payload(stored))
  wake(KEYS[5])
  -- In a queue with x-expires, the ready lists live as long as the schedule did.
  expire(expires_ms, { ready, KEYS[5] })
else
  redis.call('HSET', KEYS[2], member, stored)
  redis.call('ZADD', KEYS[1], due_ms, member)
  if redis.call('ZRANGE', KEYS[1], 0, 0)[1] == member then
    wake(KEYS[5])
  end
end
return 1
