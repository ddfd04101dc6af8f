-- Moves a message that was taken and not run from the unacked hash to the schedule. That is no failed
-- delivery. Either it was taken before it is due: it was on a ready list, because its producer does not
-- schedule, or because a stock worker gave back what it held in memory. Or this worker does not know its
-- task: then it is also listed for the workers that do (include/unknown.lua). For other workers, such as
-- those of redis://, it becomes ready again: each time after as long as it has waited so far, and when its
-- time is over and it is to be given up. What a rate has allowed is given back.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  schedule
-- KEYS[3]  messages
-- KEYS[4]  wake zset
-- KEYS[5]  duplicates
-- KEYS[6]  unknown
-- ARGV     see below, by their names
--
-- Returns  1 if it was unacked, else 0
--
-- Keeps: the message is in exactly one place, unacked before and scheduled after. It may be sent again: a
-- message that is not unacked any more is in another place by now, and is left there.

-- include: arrive
-- include: history

local
  -- Delivery tag, and id of the message.
  tag, id,
  -- x-expires of the queue, ms (0: none).
  expires_ms,
  -- When it is due, ms since the epoch, with a fraction ("": its task is not known).
  due_ms,
  -- Its task, as broker/unknown_tasks.py writes it; how long it may wait in all, and how long it waits now at
  -- least, ms.
  task, longest_ms, shortest_ms = unpack(ARGV)

local queue = {
  base = base_of(KEYS[4]),
  unacked = KEYS[1],
  schedule = KEYS[2],
  messages = KEYS[3],
  wake = KEYS[4],
  duplicates = KEYS[5],
  expires_ms = tonumber(expires_ms),
}
read_features(queue)
expect_schedule(queue.schedule, queue.messages)
local message = unacked_message(queue, tag)
if not message then
  return 0
end
local now_us = clock_us()
local now_ms = now_us / 1000

-- Returns the name that it has in the schedule, and how it is stored.
local function move(at_ms, changes)
  local stored = with_members(message.stored, 1, changes)
  leave(message)
  local member = becomes_scheduled(message, id, at_ms, stored, now_ms)
  note(queue.wake, 'other', 1)
  return member, stored
end

if due_ms ~= '' then
  move(due_ms, { due = tonumber(due_ms) })
  return 1
end

-- include: refund
-- include: unknown

-- Entries that are looked at for each one that is added, so that most of the listed messages wait.
local LOOKED_AT = 3
-- The list outlasts what is in it by this time, if no script comes across it.
local KEPT_MS = 3600 * 1000

redis.call('ZCARD', KEYS[6])
local since_ms = tonumber(members_of(message.stored, message.start).unknown) or now_ms
-- Later than now: the clock was set.
since_ms = math.floor(math.min(since_ms, now_ms))
local until_ms = since_ms + longest_ms
local member, stored =
  move(math.min(until_ms, now_ms + math.max(shortest_ms, now_ms - since_ms)), { unknown = since_ms })
-- Forgets some entries whose message is not in the schedule any more.
for _, entry in ipairs(redis.call('ZRANDMEMBER', KEYS[6], LOOKED_AT)) do
  local _, of_entry = time_and_member(entry)
  if not of_entry or redis.call('HEXISTS', KEYS[3], of_entry) == 0 then
    redis.call('ZREM', KEYS[6], entry)
  end
end
redis.call('ZADD', KEYS[6], 0, unknown_entry(task, stored, since_ms, member))
refund(queue, stored, now_us)
expire(queue.expires_ms, { KEYS[6] })
local kept_ms = longest_ms + KEPT_MS
if queue.expires_ms == 0 and redis.call('PTTL', KEYS[6]) < kept_ms then
  redis.call('PEXPIRE', KEYS[6], string.format('%.0f', kept_ms))
end
return 1
