-- Moves due messages to their ready lists, then hands up to N messages to a consumer, in priority order
-- across its queues.
--
-- A consumer may have hundreds of queues. The caller knows which of them are polled: those that may have
-- something. Of the others, those with a wake-up token have become polled meanwhile. The script works on the
-- polled queues only, on QUEUES_AT_MOST of them.
--
-- KEYS     wake of each queue; the other keys are made from it (see include/queue.lua)
-- ARGV     see below, by their names
--
-- Returns  server's clock in microseconds; how many due ids had no message; 1 if it has only migrated,
--          because a large message was due, else 0: after 1, the caller must call again and migrate nothing;
--          pairs of the index of a queue and the microseconds until its next message is due, or may be taken
--          if the consumer watches for that, for each queue that was worked on and has one; pairs of the
--          index of a queue that has more and the index of the first step that has some; indices of queues
--          whose consumers may hold a limited number of messages; for each message the index of its queue;
--          then the messages, as they are stored (see include/stored.lua). The index of a queue is that in
--          KEYS. All numbers of a list are separated by spaces
--
-- Keeps: a message leaves a ready list, or the schedule if it is large or waits for a worker that knows its
-- task, only into this consumer's unacked hash, in the same instant. (If it is consumed without acks, it
-- leaves into the reply.) A delivery tag that was taken is never used again: if a call is repeated because
-- its reply was lost, it returns what the first call took. No more is taken than the limits of a queue
-- allows (see include/limits.lua).

local
  -- How many messages to take at most (0: only migrate and pass the wake-up on).
  limit,
  -- How many messages to migrate at most.
  migrate_limit,
  -- Delivery tag of the first message. The others follow it.
  first_tag,
  -- "1": the reply to an earlier call with the same tags was lost.
  is_repeated,
  -- The index of the queue from which on tokens are looked for.
  look_from,
  -- The indices of the polled queues, separated by spaces, in the order in which they are taken from if in
  -- turn. If not in turn, that is the order of KEYS.
  polled_indices,
  -- Of which tasks it takes what waits for a worker that knows them (see include/deliver_unknown.lua).
  known_tasks,
  -- From here on, they are nearly always the same.
  -- How many bytes to migrate at most, and to take at most. A message of this size or more is large.
  byte_limit,
  consumer,
  -- How long its lease lasts, ms.
  lease_ms,
  -- A lease that has less than this left is renewed, ms.
  fresh_ms,
  -- The global_keyprefix.
  prefix,
  -- Between a queue's name and a priority step.
  separator,
  -- How many braces a ready list has on each side of the queue's name (1 on a cluster, else 0).
  braces,
  -- How many priority steps there are. They are the last of ARGV, in the order in which they are taken.
  step_count,
  -- "1": one message from each queue in turn, "0": the first queue until it is empty.
  in_turn,
  -- How many times a message was lost with a consumer before it is isolated (0: never). No message is taken
  -- after it in the same batch, so that the consumer holds nothing else.
  isolated_from,
  -- For each queue that needs it, separated by spaces: its index, "1" if it is consumed without acks, its
  -- x-expires in ms (0: none), and the same of what the consumer holds of it.
  queue_options,
  -- "1": the consumer comes again when the reply says so.
  polls_again = unpack(ARGV)

step_count, braces = tonumber(step_count), tonumber(braces)

-- include: take_plain

-- Redis runs all that stands outside of functions for each call. What only this take needs stands inside.
local function take_any()
  -- include: take_any
end

return take_plain() or take_any()
