-- Moves a delivered message from the unacked hash to the schedule. The delivery counts as failed, as when it
-- is requeued at once (include/give_back.lua). A message that has failed too often becomes a dead letter.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  schedule
-- KEYS[3]  messages
-- KEYS[4]  wake zset
-- KEYS[5]  duplicates
-- KEYS[6]  dead
-- ARGV[1]  delivery tag
-- ARGV[2]  message id
-- ARGV[3]  delay, ms from now, with a fraction
-- ARGV[4]  how many deliveries a message may have (0: any number)
-- ARGV[5]  how many dead letters the queue keeps
-- ARGV[6]  x-expires of the queue, ms (0: none)
--
-- Returns  1 if it was held, else 0; 1 if it is a dead letter now, else 0; how many older dead letters were
--          dropped for it, and the brief of such a dead letter (include/brief.lua)
--
-- Keeps: the message is in exactly one place, unacked before and scheduled or dead after. A message that is
-- not held any more is in another place by now, and is left alone.

-- include: expect
-- include: clock
-- include: wake
-- include: expire
-- include: stored
-- include: members
-- include: brief
-- include: dead
-- include: duplicates
-- include: schedule
-- include: history

local stored = redis.call('HGET', KEYS[1], ARGV[1])
if not stored then
  return { 0, 0, 0, {} }
end
local start, limit = stored_start(stored), tonumber(ARGV[4])
local count = deliveries(stored, start) + 1
if limit > 0 and count >= limit then
  expect_list(KEYS[6])
  redis.call('HDEL', KEYS[1], ARGV[1])
  note_given_back(KEYS[4], 'failed', 1, 1)
  local reason = 'delivery limit of ' .. limit .. ' reached'
  local buried = {}
  add_brief(buried, stored)
  return { 1, 1, bury(KEYS[6], tonumber(ARGV[5]), count, reason, stored), buried }
end
expect_schedule(KEYS[2], KEYS[3])
redis.call('HDEL', KEYS[1], ARGV[1])
note_given_back(KEYS[4], 'failed', 1, 0)
local due_ms = clock_us() / 1000 + tonumber(ARGV[3])
local counted = with_members(stored, 1, { deliveries = count, due = due_ms })
schedule(KEYS[2], KEYS[3], KEYS[5], KEYS[4], ARGV[2], due_ms, counted)
expire(tonumber(ARGV[6]), { KEYS[2], KEYS[3], KEYS[4], KEYS[5] })
return { 1, 0, 0, {} }
