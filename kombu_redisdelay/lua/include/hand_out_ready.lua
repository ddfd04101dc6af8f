-- Hands out ready messages by priority. `queue.ready` has the list of each of the `steps`, `queue.counts` the
-- number of messages in it.

-- Returns whether there was a message that may be taken, and room for it.
local function hand_out_one(batch, queue, steps, step_index)
  if queue.counts[step_index] == 0 or batch.count >= batch.limit or batch.bytes >= batch.byte_limit then
    return false
  end
  if not may_take(queue) then
    return false
  end
  queue.counts[step_index] = queue.counts[step_index] - 1
  local step = steps[step_index] .. ':'
  hand_out(batch, queue, step .. redis.call('RPOP', queue.ready[step_index]), #step + 1)
  return true
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
