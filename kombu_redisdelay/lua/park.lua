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

-- include: expect
-- include: expire
-- include: schedule
-- include: history
-- include: unique_unacked
-- include: fair_unacked

expect_schedule(KEYS[2], KEYS[3])
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored then
  local parked = with_members(stored, 1, { due = tonumber(ARGV[3]) })
  local base, start = base_of(KEYS[4]), stored_start(stored)
  local keyed = key_of_unacked(base, KEYS[1], ARGV[1], stored, start)
  redis.call('HDEL', KEYS[1], ARGV[1])
  local member = schedule(KEYS[2], KEYS[3], KEYS[5], KEYS[4], ARGV[2], ARGV[3], parked)
  keep_key(keyed, 'a', stored_step(stored), clock_us() / 1000, member)
  if counts_keys(base) then
    release_key(base, KEYS[1], ARGV[1])
  end
  note(KEYS[4], 'other', 1)
  expire(tonumber(ARGV[4]), { KEYS[2], KEYS[3], KEYS[4], KEYS[5] })
end
