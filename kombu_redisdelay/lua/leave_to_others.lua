-- Leaves a delivered message to other workers, because this one does not know its task. It goes from the
-- unacked hash to the schedule, and is listed for the workers that know the task (include/unknown.lua). For
-- other workers, such as those of redis://, it becomes ready again: each time after as long as it has waited
-- so far, and when its time is over and it is to be given up. That is no failed delivery, because it was not
-- run. What a rate has allowed is given back.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  schedule
-- KEYS[3]  messages
-- KEYS[4]  wake zset
-- KEYS[5]  duplicates
-- KEYS[6]  unknown
-- KEYS[7]  limits (hash `control`)
-- ARGV[1]  delivery tag
-- ARGV[2]  message id
-- ARGV[3]  its task, as broker/unknown_tasks.py writes it
-- ARGV[4]  how long it may wait in all, ms
-- ARGV[5]  how long it waits now at least, ms
-- ARGV[6]  x-expires of the queue, ms (0: none)
--
-- Returns  1 if it was unacked, else 0
--
-- Keeps: the message is in exactly one place, unacked before and scheduled after. It may be sent again: a
-- message that is not unacked any more is in another place by now, and is left there.

-- include: unknown
-- include: arrive
-- include: history
-- include: fair_limits

-- Entries that are looked at for each one that is added, so that most of the listed messages wait.
local LOOKED_AT = 3
-- The list outlasts what is in it by this time, if no script comes across it.
local KEPT_MS = 3600 * 1000

-- Forgets some entries whose message is not in the schedule any more.
local function forget_some()
  for _, entry in ipairs(redis.call('ZRANDMEMBER', KEYS[6], LOOKED_AT)) do
    local _, member = time_and_member(entry)
    if not member or redis.call('HEXISTS', KEYS[3], member) == 0 then
      redis.call('ZREM', KEYS[6], entry)
    end
  end
end

-- Gives back what a message has taken that was not run: one more may be taken at once. Nobody notes which
-- messages were taken before there was a rate.
local function refund(now_us)
  local fields = redis.pcall('HMGET', KEYS[7], 'interval_us', 'full_at_us', 'concurrency')
  if fields.err then
    return
  end
  local interval_us, full_at_us = number_in(fields[1]), number_in(fields[2])
  if interval_us and full_at_us then
    full_at_us = math.max(now_us, full_at_us - interval_us)
    redis.call('HSET', KEYS[7], 'full_at_us', string.format('%.0f', full_at_us))
  end
  if interval_us or number_in(fields[3]) then
    wake(KEYS[4])
  end
end

-- The same for the rate of its key in a fair queue.
local function refund_key(base, stored, now_us)
  local fair = { base = base, needs_ack = true, now_us = now_us }
  if fair_state(base) ~= 'on' then
    return
  end
  read_fair_limits(fair)
  local key = fair_key_of(stored, stored_start(stored))
  read_keys(fair, { key })
  local state = fair.keys[key]
  if state and state.interval_us then
    state.tat_us, state.is_put_right = math.max(now_us, state.tat_us - state.interval_us), true
    write_counts(fair)
    if unlimit(base, { key }) then
      wake(KEYS[4])
    end
  end
end

local queue = queue_to_schedule(ARGV[6])
local message = unacked_message(queue, ARGV[1])
if not message then
  return 0
end
expect_schedule(queue.schedule, queue.messages)
redis.call('ZCARD', KEYS[6])
local stored = message.stored
local now_us = clock_us()
local now_ms, wait_ms = now_us / 1000, tonumber(ARGV[4])
local since_ms = tonumber(members_of(stored, message.start).unknown) or now_ms
-- Later than now: the clock was set.
since_ms = math.floor(math.min(since_ms, now_ms))
local due_ms = math.min(since_ms + wait_ms, now_ms + math.max(tonumber(ARGV[5]), now_ms - since_ms))
local waiting = with_members(stored, 1, { unknown = since_ms })
leave(message)
local member = becomes_scheduled(message, ARGV[2], due_ms, waiting, now_ms)
forget_some()
redis.call('ZADD', KEYS[6], 0, unknown_entry(ARGV[3], waiting, since_ms, member))
note(KEYS[4], 'other', 1)
refund(now_us)
refund_key(queue.base, stored, now_us)
expire(queue.expires_ms, { KEYS[6] })
local kept_ms = wait_ms + KEPT_MS
if queue.expires_ms == 0 and redis.call('PTTL', KEYS[6]) < kept_ms then
  redis.call('PEXPIRE', KEYS[6], string.format('%.0f', kept_ms))
end
return 1
