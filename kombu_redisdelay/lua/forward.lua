-- Moves due messages of a queue to their ready lists while no consumer takes from it: it has no consumers, or
-- these have no room. Then sorts the ready messages of a fair queue, if it has consumers. Without any, the
-- order does not matter yet, and `LLEN` tells an autoscaler that a consumer is needed. If a queue is not to
-- be fair any more, its sorted messages are moved back, with or without consumers.
--
-- KEYS[1]  ready list of step 0
-- KEYS[2]  schedule
-- KEYS[3]  messages
-- KEYS[4]  wake zset
-- KEYS[5]  consumers
-- KEYS[6+] ready lists of the other steps
-- ARGV[1]  how many messages to move at most
-- ARGV[2]  how many bytes to move at most, about
-- ARGV[3]  separator between a queue's name and a priority step
-- ARGV[4]  "1" if the caller has taken the wake-up token
--
-- Returns  pairs of a name and a value:
--   moved         how many messages were moved
--   missing       how many due ids had no message
--   late_us       microseconds for which the first of them was due
--   next_due_us   microseconds until the next message is due (-1: none is scheduled)
--   consumers     how many consumers the queue has
--   has_more      1 if it is fair (include/fair.lua) and more may have to be sorted or moved back, else 0
--
-- Keeps: a message leaves the schedule only into a ready list. The wake-up token is for consumers. If there
-- are any, a token that the caller has taken is put back, and consumers are woken for what was moved. If
-- there are none, no token is added, because it would only wake the caller again.

-- include: base
-- include: clock
-- include: expire
-- include: migrate
-- include: fair

local ready, schedule_key, wake_key, consumers = KEYS[1], KEYS[2], KEYS[4], KEYS[5]
local now_us = clock_us()
local budget = { messages = tonumber(ARGV[1]), bytes = tonumber(ARGV[2]), large = math.huge }

local first_due_ms = first_due(schedule_key)
local expires_ms = redis.call('PTTL', schedule_key)
local ready_at = { ['0'] = ready }
for i = 6, #KEYS do
  ready_at[string.sub(KEYS[i], #ready + #ARGV[3] + 1)] = KEYS[i]
end
local base = base_of(wake_key)
local moved, missing, next_due_us = migrate(base, ready, ready_at, now_us, budget)
if moved > 0 then
  -- In a queue with x-expires, the ready lists live as long as the schedule did.
  expire(expires_ms, { ready, unpack(KEYS, 6) })
end
local attended = redis.call('ZCOUNT', consumers, '(' .. math.floor(now_us / 1000), '+inf')
if attended > 0 and (moved > 0 or ARGV[4] == '1') then
  wake(wake_key)
end
local late_us = moved > 0 and math.max(0, now_us - first_due_ms * 1000) or 0

-- Sorts by key, or moves back. A function, because Lua allows only so many locals in one.
local function move_sorted(state)
  -- include: fair_forward
  return sort_or_move_back(base, state, ready_at, now_us, budget, attended)
end

local state = fair_state(base)
local is_to_move = state == 'off' or state and attended > 0
return {
  'moved', moved, 'missing', missing, 'late_us', late_us, 'next_due_us', next_due_us,
  'consumers', attended, 'has_more', is_to_move and move_sorted(state) or 0,
}
