-- Each time that a large message goes into Lua or becomes another string there costs 1.5 ms a MB. So one that
-- is due is handed out without the detour over its ready list.

-- Whether a message that is due would be the next to be taken, by this consumer.
local function is_next(stored, queues, steps)
  local step_index = 1
  while steps[step_index] ~= stored_step(stored) do
    step_index = step_index + 1
    if step_index > #steps then
      return false
    end
  end
  for _, queue in ipairs(queues) do
    if redis.call('EXISTS', unpack(queue.ready, 1, step_index)) > 0 then
      return false
    end
  end
  return true
end

-- For migrate(): returns whether the message has found its place. Else `batch.migrates_large` is set if it is
-- large: that is all that is to be done for now.
local function hand_out_large(batch, queue, stored, queues, steps)
  if #stored < batch.byte_limit then
    return false
  end
  if batch.count < batch.limit and is_next(stored, queues, steps) then
    hand_out(batch, queue, stored)
    return true
  end
  batch.migrates_large = true
  return false
end
