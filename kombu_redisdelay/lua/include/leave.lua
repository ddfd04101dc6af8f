-- A message leaves the place where it is: the consumer that holds it, the schedule, or a ready list. Where it
-- goes, arrive.lua says. These two files know what each feature does then, and no other one does.
--
-- A script finds a message first: unacked_message(), scheduled_message(), or other_message() of one that it
-- has from elsewhere. What could fail where it goes is found out next, by expect_*(). Then leave() is the
-- first write, so a full Redis allows the rest (full.lua).
--
-- Of its `queue`, this needs the keys base and unacked, or schedule, messages and duplicates, as far as the
-- message comes from there, and what read_features() finds out.

-- include: duplicates
-- include: fair_unacked
-- include: unique_unacked

-- Finds out whether a queue is fair, and whether its messages are counted by key.
local function read_features(queue)
  -- For most queues, this is all.
  if redis.call('EXISTS', queue.base .. 'control', queue.base .. 'unacked-keys') > 0 then
    queue.fair, queue.counts_keys = fair_state(queue.base), counts_keys(queue.base)
  end
end

-- The message with a delivery tag; nil if it is not unacked any more: it is in another place by now.
--   stored, start, step   as in stored.lua
--   unique_key            its unique key (unique_unacked.lua); nil if it has none
local function unacked_message(queue, tag)
  local stored = redis.call('HGET', queue.unacked, tag)
  if not stored then
    return nil
  end
  local start = stored_start(stored)
  return {
    queue = queue,
    tag = tag,
    stored = stored,
    start = start,
    step = stored_step(stored),
    unique_key = unique_key_of(queue.base, queue.unacked, tag, stored, start),
  }
end

-- The same of a message that no consumer holds: it was ready, or another program had it. `id` is needed if it
-- goes to another place.
local function other_message(queue, stored, id)
  local start, step = stored_start(stored), stored_step(stored)
  return { queue = queue, stored = stored, start = start, step = step, id = id }
end

-- The same of a scheduled message, which the caller has read, under the name that it has there.
local function scheduled_message(queue, member, stored)
  local message = other_message(queue, stored)
  message.member = member
  return message
end

-- The same of a message that is nowhere: it was taken without acks, or acked before its task ran.
local function copied(queue, stored)
  local message = other_message(queue, stored)
  message.tag = ''
  return message
end

local function leave(message)
  local queue = message.queue
  if message.member then
    unschedule(queue.schedule, queue.messages, queue.duplicates, message.member)
    return
  end
  redis.call('HDEL', queue.unacked, message.tag)
  if queue.counts_keys then
    release_key(queue.base, queue.unacked, message.tag)
  end
end

-- It has left for good: it is over, or its own retry is there in its place. Returns how many bytes its key
-- counts as.
local function is_over(message, now_ms)
  if not message.tag then
    return forget_unique(message.queue.base, message.stored, now_ms)
  end
  free_unique_key(message.unique_key, now_ms)
  return message.unique_key and BYTES_OF_KEY or 0
end
