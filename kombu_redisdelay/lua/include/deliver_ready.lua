-- Hands out ready messages by priority. They have three sources: the ready lists, the lists of the keys of a
-- fair queue (fair_take.lua), and what waits for a worker that knows its task, if this consumer has said that
-- it knows it (deliver_unknown.lua). A source takes out the next message of a step, and returns it as it is
-- stored, and where its payload begins; nil if none may be taken. `queue.next_ready` is the source of what is
-- ready, `queue.counts` has the number of messages in it for the index of each step. Where there is also
-- something that waits, one of each is taken in turn.

-- include: deliver
-- include: deliver_unknown

-- The ready lists. `prefix` is what a stored message begins with.
local function next_in_list(queue, step_index, prefix)
  local payload = redis.call('RPOP', queue.ready[step_index])
  if payload then
    return prefix .. payload, #prefix + 1
  end
end

-- Whether it is the turn of what waits. A consumer may take one message at a time, so `is_even` says which
-- source begins.
local function is_turn_of_waiting(queue, is_ready, is_even)
  if is_ready and queue.had_waiting == nil then
    queue.had_waiting = is_even
  end
  queue.had_waiting = not (is_ready and queue.had_waiting)
  return queue.had_waiting
end

-- The next message of a step, from one source or the other.
local function next_message(batch, queue, step_index, prefix)
  local is_ready, stored, start = queue.counts[step_index] > 0, nil, nil
  if queue.waits and is_turn_of_waiting(queue, is_ready, batch.first_tag % 2 == 0) then
    stored, start = next_waiting(queue, step_index)
  end
  if not stored and is_ready then
    queue.counts[step_index] = queue.counts[step_index] - 1
    stored, start = queue.next_ready(queue, step_index, prefix, batch.limit - batch.count)
  end
  return stored, start
end

-- Returns whether there was a message that may be taken, and room for it.
local function deliver_one(batch, queue, step_index, prefix)
  if queue.counts[step_index] == 0 and not queue.waits then
    return false
  end
  if batch.count >= batch.limit or batch.bytes >= batch.byte_limit or not may_take(queue) then
    return false
  end
  local stored, start = next_message(batch, queue, step_index, prefix)
  if not stored then
    return false
  end
  local tag = nth_tag(batch, batch.count)
  if not queue.has_unique or takes_key(batch, queue, stored, start, tag) then
    deliver(batch, queue, stored, start, tag)
  end
  return true
end

-- For each step: takes one message from each queue in turn, or empties one queue after the other.
local function deliver_ready(batch, queues, steps, in_turn)
  for step_index = 1, #steps do
    local waiting, prefix = queues, steps[step_index] .. ':'
    while #waiting > 0 do
      local still_waiting = {}
      for _, queue in ipairs(waiting) do
        if in_turn then
          if deliver_one(batch, queue, step_index, prefix) then
            still_waiting[#still_waiting + 1] = queue
          end
        else
          while deliver_one(batch, queue, step_index, prefix) do end
        end
      end
      waiting = still_waiting
    end
  end
end
