-- Hands out ready messages by priority. `queue.ready` has the list of each of the `steps`, `queue.counts` the
-- number of messages in it. A message that waits for a worker that knows its task counts as ready, if this
-- consumer has said that it knows the task: while there are both, one of each is taken in turn.

-- include: hand_out
-- include: hand_out_unknown

-- The next message in turn, as it is stored, if it waits for such a worker; else nil.
local function next_fetched(queue, step_index, is_even)
  if not queue.waits then
    return nil
  end
  if queue.counts[step_index] > 0 and queue.had_fetched == nil then
    -- A consumer may take one message at a time.
    queue.had_fetched = is_even
  end
  if queue.counts[step_index] > 0 and queue.had_fetched then
    queue.had_fetched = false
    return nil
  end
  queue.had_fetched = true
  return fetch(queue, step_index)
end

-- Hands a message out, unless it has to wait for its key.
local function hand_out_if_free(batch, queue, stored, start)
  local tag = nth_tag(batch, batch.count)
  if not queue.has_unique or takes_key(batch, queue, stored, start, tag) then
    hand_out(batch, queue, stored, start, tag)
  end
end

-- The next payload of a step that has some; nil if none may be taken, because the keys of a fair queue are at
-- their limits.
local function next_ready(batch, queue, step_index)
  queue.counts[step_index] = queue.counts[step_index] - 1
  if not queue.fair then
    return redis.call('RPOP', queue.ready[step_index])
  end
  return batch.fair.next_of(queue, step_index, batch.limit - batch.count)
end

-- Returns whether there was a message that may be taken, and room for it.
local function hand_out_one(batch, queue, steps, step_index)
  if queue.counts[step_index] == 0 and not queue.waits then
    return false
  end
  if batch.count >= batch.limit or batch.bytes >= batch.byte_limit or not may_take(queue) then
    return false
  end
  local fetched = next_fetched(queue, step_index, batch.first_tag % 2 == 0)
  if fetched then
    hand_out_if_free(batch, queue, fetched, stored_start(fetched))
    return true
  end
  if queue.counts[step_index] == 0 then
    return false
  end
  local payload = next_ready(batch, queue, step_index)
  if payload then
    local step = steps[step_index] .. ':'
    hand_out_if_free(batch, queue, step .. payload, #step + 1)
  end
  return payload ~= nil
end

-- For each step: takes one message from each queue in turn, or empties one queue after the other.
local function hand_out_ready(batch, queues, steps, in_turn)
  for step_index = 1, #steps do
    local waiting = queues
    while #waiting > 0 do
      local still_waiting = {}
      for _, queue in ipairs(waiting) do
        if in_turn then
          if hand_out_one(batch, queue, steps, step_index) then
            still_waiting[#still_waiting + 1] = queue
          end
        else
          while hand_out_one(batch, queue, steps, step_index) do end
        end
      end
      waiting = still_waiting
    end
  end
end
