-- Gives scheduled messages other due times. A message itself says when it is due, so the caller has
-- rewritten it. If its new time has come, a message goes to its ready list, in the order given.
--
-- KEYS[1]  schedule
-- KEYS[2]  messages
-- KEYS[3]  duplicates
-- KEYS[4]  ready list of step 0
-- KEYS[5]  wake zset
-- ARGV[1]  separator between a queue's name and a priority step
-- ARGV[2]  "1" if no message waits for its key: those that will take them know no keys
-- ARGV[3]  "1" if it only looks: what would be done is returned
-- ARGV[4+] for each: the name that it has in the schedule, the message as it is stored, the message as it is
--          to be stored, its due time, ms since the epoch, with a fraction
--
-- Returns  for each: 1 if it was done; 0 if it is not scheduled any more, or is not the same message; 2 if it
--          was to go to its ready list, and has to wait for its key (include/unique.lua): it is as it was
--
-- Keeps: each message is in exactly one place: scheduled before, scheduled or ready after. A message that is
-- delivered in the meantime is in another place by now, and is left there.

-- include: arrive

local queue = {
  base = base_of(KEYS[5]),
  schedule = KEYS[1],
  messages = KEYS[2],
  duplicates = KEYS[3],
  ready = KEYS[4],
  wake = KEYS[5],
  separator = ARGV[1],
  expires_ms = redis.call('PTTL', KEYS[1]),
}
local now_ms = clock_us() / 1000
local without_keys, only_looks = ARGV[2] == '1', ARGV[3] == '1'
local reply, has_ready, scheduled = {}, false, {}

-- Returns 1, or 2 if it has to wait for its key.
local function deliver(member, stored)
  local message = scheduled_message(queue, member, stored)
  -- Before anything that needs the right to write.
  if only_looks then
    return (without_keys or may_be_due(message, now_ms)) and 1 or 2
  end
  expect_ready(message, 'tail')
  if without_keys then
    is_over(message, now_ms)
  end
  local score = redis.call('ZSCORE', KEYS[1], member)
  if not becomes_due(message, stored_payload(stored), now_ms) then
    -- What is not done changes nothing.
    redis.call('ZADD', KEYS[1], score, member)
    return 2
  end
  has_ready = true
  return 1
end

for i = 4, #ARGV, 4 do
  local member, due_ms = ARGV[i], tonumber(ARGV[i + 3])
  local outcome = 0
  if redis.call('HGET', KEYS[2], member) == ARGV[i + 1] then
    -- It comes at that time, not when a worker fetches it that knows its task.
    local changes = { due = math.max(due_ms, now_ms), unknown = false }
    local stored = with_members(ARGV[i + 2], 1, changes)
    if due_ms <= now_ms then
      outcome = deliver(member, stored)
    elseif only_looks then
      outcome = 1
    else
      expect_right('HSET', KEYS[2], member, '')
      expect_right('ZADD', KEYS[1], due_ms, member)
      -- Removed first, so that a full Redis allows it.
      redis.call('ZREM', KEYS[1], member)
      redis.call('HSET', KEYS[2], member, stored)
      redis.call('ZADD', KEYS[1], due_ms, member)
      scheduled[member] = true
      outcome = 1
    end
  end
  reply[#reply + 1] = outcome
end
if has_ready or next(scheduled) and scheduled[redis.call('ZRANGE', KEYS[1], 0, 0)[1]] then
  wake(KEYS[5])
end
return reply
