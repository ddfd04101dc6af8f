-- Moves due messages to their ready lists, then hands up to N messages to a consumer, in priority order
-- across its queues.
--
-- KEYS     six for each queue: ready list of step 0, schedule, messages, wake, unacked of this consumer,
--          consumers
-- ARGV[1]  N: how many messages at most (0: only migrate and pass the wake-up on)
-- ARGV[2]  how many messages to migrate at most
-- ARGV[3]  how many bytes to migrate at most, and to take at most; a message of this size or more is large
-- ARGV[4]  delivery tag of the first message; the others follow it
-- ARGV[5]  consumer
-- ARGV[6]  how long its lease lasts, ms
-- ARGV[7]  separator between a queue's name and a priority step
-- ARGV[8]  "1": one message from each queue in turn, "0": the first queue until it is empty
-- ARGV[9]  failed deliveries after which a message is suspected of causing them (0: never). No message
--          is taken after it in the same batch, so that the consumer will hold it alone
-- ARGV[10] how many priority steps
-- ARGV[11+] the priority steps, in the order in which they are taken; then for each queue "1" if it is
--          consumed without acks, and its x-expires in ms (0: none)
--
-- Returns  server's clock in microseconds; microseconds until the next message is due (-1: none is
--          scheduled); how many due ids had no message; 1 if it has only migrated, because a large message
--          was due, else 0: after 1, the caller must call again and migrate nothing; for each message the
--          index of its queue (from 1), separated by spaces; then the messages, as they are stored (see
--          include/stored.lua)
--
-- A server that is out of memory refuses a script if its first write could need more memory. It does not
-- stop a script that has already written. So every script that must work then removes before it adds.
--
-- Keeps: a message leaves a ready list, or the schedule if it is large, only into this consumer's unacked
-- hash, in the same instant. (If it is consumed without acks, it leaves into the reply.) A delivery tag that
-- was taken is never used again: if a call is repeated because its reply was lost, it returns what the first
-- call took.

-- include: expect
-- include: clock
-- include: wake
-- include: expire
-- include: stored
-- include: migrate
-- include: deliveries
-- include: hand_out
-- include: hand_out_large
-- include: hand_out_ready

local KEYS_PER_QUEUE = 6
local consumer, lease_ms, separator, in_turn = ARGV[5], tonumber(ARGV[6]), ARGV[7], ARGV[8] == '1'

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
    needs_ack = ARGV[option + 1] ~= '1',
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

local batch = {
  limit = tonumber(ARGV[1]),
  byte_limit = tonumber(ARGV[3]),
  first_tag = tonumber(ARGV[4]),
  suspect_from = tonumber(ARGV[9]),
  count = 0,
  bytes = 0,
  messages = {},
  from = {},
  migrates_large = false,
}
local now_us = clock_us()
local budget = { messages = tonumber(ARGV[2]), bytes = batch.byte_limit }
if hand_out_again(batch, queues) then
  batch.limit = 0
  budget.bytes = budget.bytes - batch.bytes
end

local missing, next_due_us, any_ready = 0, -1, false
for _, queue in ipairs(queues) do
  local _, queue_missing, queue_due_us = migrate(
    queue.schedule, queue.messages, queue.name, queue.ready_at, now_us, budget, function(stored)
      return hand_out_large(batch, queue, stored, queues, steps)
    end
  )
  missing = missing + queue_missing
  if queue_due_us >= 0 and (next_due_us < 0 or queue_due_us < next_due_us) then
    next_due_us = queue_due_us
  end
  queue.has_ready = redis.call('EXISTS', unpack(queue.ready)) > 0
  any_ready = any_ready or queue.has_ready
end

local only_migrated = any_ready and batch.limit > 0 and batch.migrates_large
if any_ready and batch.limit > 0 and not only_migrated then
  hand_out_ready(batch, queues, steps, in_turn)
end
hold(queues, consumer, math.floor(now_us / 1000), lease_ms)

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

local indices = table.concat(batch.from, ' ')
return { now_us, next_due_us, missing, only_migrated and 1 or 0, indices, unpack(batch.messages) }
