-- Hands messages out to a consumer. `batch` is what one take hands out:
--   limit, byte_limit        how many messages and bytes at most
--   count, bytes             how many so far; each key counts as some bytes (unique.lua)
--   first_tag                delivery tag of the first message; the others follow it
--   consumer, now_ms         the consumer that gets them, and the time
--   isolated_from            how many times lost a message is the last of a batch (0: never)
--   fair                     what is done with fair queues (fair_take.lua), if there is one
--   messages, from           the messages, as they are stored, and the index of the queue of each
-- A `queue` has an index, the keys unacked, consumers and history, `needs_ack`, `unacked_ttl_ms` (time to
-- live of what a consumer holds of a queue that expires, else 0), `lease_end_ms`, `has_unique` (whether a key
-- is held, unique.lua), what limits.lua allows, `fair` if it is a fair queue (fair_take.lua), `taken`: the
-- fields and values that hold() writes, `to_free`: the messages whose keys free_keys() frees, and
-- `has_unblocked`: whether a message is due now that waited for one of these keys.

-- include: expire
-- include: history
-- include: limits
-- include: unique_take

-- The delivery tag of the message after `n` others. As text: what Redis does to a number that a script gives
-- to a command costs half as much as the command.
local function nth_tag(batch, n)
  return string.format('%d', batch.first_tag + n)
end

-- `start` is where the payload begins in `stored`, `tag` the next delivery tag.
local function deliver(batch, queue, stored, start, tag)
  local fields = queue.taken
  if queue.fair then
    batch.fair.count(queue.fair, batch.consumer, tag)
  end
  fields[#fields + 1] = tag
  fields[#fields + 1] = stored
  count_against(queue)
  batch.count, batch.bytes = batch.count + 1, batch.bytes + #stored
  batch.from[batch.count] = queue.index
  batch.messages[batch.count] = stored
  local isolated_from = batch.isolated_from
  if queue.needs_ack and isolated_from > 0 and losses(stored, start) >= isolated_from then
    batch.limit = batch.count
  end
end

-- Hands out the same messages as an earlier call with the same tags, whose reply was lost. Returns whether
-- there was such a call. If so, nothing else must be handed out.
local function deliver_again(batch, queues)
  local n, found = 0, true
  while found do
    local tag = nth_tag(batch, n)
    found = false
    for _, queue in ipairs(queues) do
      local stored = queue.needs_ack and redis.call('HGET', queue.unacked, tag)
      if stored then
        found = true
        batch.bytes = batch.bytes + #stored
        batch.from[#batch.from + 1] = queue.index
        batch.messages[#batch.messages + 1] = stored
      end
    end
    n = n + 1
  end
  return #batch.messages > 0
end

-- Makes the consumer hold what was handed out to it, and frees the keys that this does not need. Renews its
-- lease if less than `fresh_ms` are left.
local function hold(queues, consumer, now_ms, lease_ms, fresh_ms)
  for _, queue in ipairs(queues) do
    free_keys(queue, now_ms)
    if queue.needs_ack and #queue.taken > 0 then
      redis.call('HSET', queue.unacked, unpack(queue.taken))
      note_delivered(queue.history, #queue.taken / 2)
      if queue.lease_end_ms < now_ms + fresh_ms then
        redis.call('ZADD', queue.consumers, now_ms + lease_ms, consumer)
      end
      if queue.unacked_ttl_ms > 0 then
        expire(queue.unacked_ttl_ms, { queue.unacked, queue.consumers })
      end
    end
  end
end
