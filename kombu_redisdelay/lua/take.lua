-- Moves due messages to their ready lists, then hands up to N messages to a consumer, in priority order
-- across its queues.
--
-- KEYS     six for each queue: ready list of step 0, schedule, messages, wake, unacked of this consumer,
--          consumers
-- ARGV[1]  N: how many messages at most (0: only migrate and pass the wake-up on)
-- ARGV[2]  how many messages to migrate at most
-- ARGV[3]  how many bytes to migrate at most, and to take at most; a message of that size is large
-- ARGV[4]  delivery tag of the first message; the others follow it
-- ARGV[5]  consumer
-- ARGV[6]  how long its lease lasts, ms
-- ARGV[7]  separator between a queue's name and a priority step
-- ARGV[8]  "1": one message from each queue in turn, "0": the first queue until it is empty
-- ARGV[9]  failed deliveries after which a message is suspected of what failed (0: any number). Nothing is
--          taken behind it: the consumer will hold it alone
-- ARGV[10] how many priority steps
-- ARGV[11+] the priority steps, first to be taken first; then for each queue "1" if it is consumed
--          without acks, and its x-expires in ms (0: none)
--
-- Returns  server's clock in microseconds; microseconds until the next message is due (-1: none is
--          scheduled); how many due ids had no message; 1 if it has only migrated, because a large message
--          was among them, and the caller is to come again and migrate nothing, else 0; for each message the
--          index of its queue (from 1), separated by spaces; then the messages, as they are stored (see
--          stored.lua)
--
-- A server that is out of memory refuses a script whose first write could take more of it, and lets one go
-- on that has begun: so in every script that must work then too, removing comes before adding.
--
-- Keeps: a message leaves a ready list, or the schedule if it is large, only into this consumer's unacked
-- hash, in the same instant (or, consumed without acks, into the reply). A taken tag is never used again: a
-- call repeated because its reply was lost returns what the first one took.

-- include: expect
-- include: clock
-- include: wake
-- include: expire
-- include: stored
-- include: migrate
-- include: deliveries

local KEYS_PER_QUEUE = 6
local limit, migrate_limit, byte_limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local first_tag, consumer, lease_ms = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local separator, in_turn, suspect_from = ARGV[7], ARGV[8] == '1', tonumber(ARGV[9])

local steps = {}
for i = 1, tonumber(ARGV[10]) do
  steps[i] = ARGV[10 + i]
end

local queues = {}
for i = 1, #KEYS / KEYS_PER_QUEUE do
  local key, option = (i - 1) * KEYS_PER_QUEUE, 10 + #steps + (i - 1) * 2
  local queue = {
    index = i,
    schedule = KEYS[key + 2],
    messages = KEYS[key + 3],
    wake = KEYS[key + 4],
    unacked = KEYS[key + 5],
    consumers = KEYS[key + 6],
    acked = ARGV[option + 1] ~= '1',
    expires_ms = tonumber(ARGV[option + 2]),
    name = KEYS[key + 1],
    ready = {},
    ready_at = {},
    taken = {},
  }
  for step_index, step in ipairs(steps) do
    queue.ready[step_index] = ready_key(queue.name, separator, step)
    queue.ready_at[step] = queue.ready[step_index]
  end
  queues[i] = queue
end

local now_us = clock_us()
local reply = { now_us, -1, 0, 0, '' }
local taken_from = {}

local migration_budget = { messages = migrate_limit, bytes = byte_limit }

local migrates_large = false
local taken, bytes = 0, 0

-- Adds a message to the reply, and to what hold_what_was_taken() writes.
local function hand_out(queue, stored)
  local fields = queue.taken
  fields[#fields + 1] = first_tag + taken
  fields[#fields + 1] = stored
  taken, bytes = taken + 1, bytes + #stored
  taken_from[taken] = queue.index
  reply[#reply + 1] = stored
  if queue.acked and suspect_from > 0 and deliveries(stored, stored_start(stored)) >= suspect_from then
    limit = taken
  end
end

-- Whether a message that is due would be the next to be taken, by this consumer.
local function is_next(stored)
  local step_index = 1
  while steps[step_index] ~= stored_step(stored) do
    step_index = step_index + 1
    if step_index > #steps then
      return false
    end
  end
  for _, other in ipairs(queues) do
    if redis.call('EXISTS', unpack(other.ready, 1, step_index)) > 0 then
      return false
    end
  end
  return true
end

-- Each time that a large message goes into Lua or becomes another string there costs 1.5 ms a MB. So it is
-- handed out without the detour over its ready list, or else that is all that is done for now.
local function hand_out_large(queue, stored)
  if #stored < byte_limit then
    return false
  end
  if taken < limit and is_next(stored) then
    hand_out(queue, stored)
    return true
  end
  migrates_large = true
  return false
end

local function take_one(queue, step_index)
  if taken >= limit or bytes >= byte_limit then
    return false
  end
  local payload = redis.call('RPOP', queue.ready[step_index])
  if not payload then
    return false
  end
  hand_out(queue, steps[step_index] .. ':' .. payload)
  return true
end

local function take()
  for step_index = 1, #steps do
    local waiting = {}
    for i, queue in ipairs(queues) do
      waiting[i] = queue
    end
    while #waiting > 0 do
      local still_waiting = {}
      for _, queue in ipairs(waiting) do
        if in_turn then
          if take_one(queue, step_index) then
            still_waiting[#still_waiting + 1] = queue
          end
        else
          while take_one(queue, step_index) do end
        end
      end
      waiting = still_waiting
    end
  end
end

local function hold_what_was_taken()
  for _, queue in ipairs(queues) do
    if queue.acked and #queue.taken > 0 then
      redis.call('HSET', queue.unacked, unpack(queue.taken))
      redis.call('ZADD', queue.consumers, math.floor(now_us / 1000) + lease_ms, consumer)
      if queue.expires_ms > 0 then
        expire(held_for_ms(queue.expires_ms, lease_ms), { queue.unacked, queue.consumers })
      end
    end
  end
end

local function take_again_what_was_taken()
  local tag, found = first_tag, true
  while found do
    found = false
    for _, queue in ipairs(queues) do
      local stored = queue.acked and redis.call('HGET', queue.unacked, tag)
      if stored then
        found = true
        migration_budget.bytes = migration_budget.bytes - #stored
        taken_from[#taken_from + 1] = queue.index
        reply[#reply + 1] = stored
      end
    end
    tag = tag + 1
  end
  return #taken_from > 0
end

if take_again_what_was_taken() then
  limit = 0
end
local any_ready = false
for _, queue in ipairs(queues) do
  local _, missing, next_due_us = migrate(
    queue.schedule, queue.messages, queue.name, queue.ready_at, now_us, migration_budget, function(stored)
      return hand_out_large(queue, stored)
    end
  )
  reply[3] = reply[3] + missing
  if next_due_us >= 0 and (reply[2] < 0 or next_due_us < reply[2]) then
    reply[2] = next_due_us
  end
  queue.has_ready = redis.call('EXISTS', unpack(queue.ready)) > 0
  any_ready = any_ready or queue.has_ready
end
if any_ready and limit > 0 then
  if migrates_large then
    reply[4] = 1
  else
    take()
  end
end
hold_what_was_taken()
for _, queue in ipairs(queues) do
  if queue.has_ready and redis.call('EXISTS', unpack(queue.ready)) > 0 then
    wake(queue.wake)
  else
    redis.call('DEL', queue.wake)
  end
  if queue.expires_ms > 0 then
    expire(queue.expires_ms, queue.ready)
    expire(queue.expires_ms, { queue.schedule, queue.messages, queue.wake })
  end
end
reply[5] = table.concat(taken_from, ' ')
return reply
