-- A message leaves the consumer that holds it. Where it goes, arrive.lua says. These two files know what each
-- feature does then, and no other one does.
--
-- unacked_message() finds a message. leave() is the first write, so a full Redis allows the rest (full.lua).
-- What could fail where the message goes is found out before, by expect_*().
--
-- `queue` has the keys base and unacked, and `counts_keys`: whether its messages are counted by key
-- (fair_unacked.lua).

-- include: fair_unacked
-- include: unique_unacked

-- The message with a delivery tag; nil if it is not unacked any more: it is in another place by now.
--   stored, start, step   as in stored.lua
--   keyed                 its unique key (unique_unacked.lua); nil if it has none
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
    keyed = key_of_unacked(queue.base, queue.unacked, tag, stored, start),
  }
end

-- The same of a message that nobody holds: it was taken without acks, or acked before its task ran.
local function copied(queue, stored)
  local start, step = stored_start(stored), stored_step(stored)
  return { queue = queue, tag = '', stored = stored, start = start, step = step }
end

local function leave(message)
  local queue = message.queue
  redis.call('HDEL', queue.unacked, message.tag)
  if queue.counts_keys then
    release_key(queue.base, queue.unacked, message.tag)
  end
end

-- It has left for good: it is over, or its own retry is there in its place.
local function is_over(message, now_ms)
  free_key(message.keyed, now_ms)
end
