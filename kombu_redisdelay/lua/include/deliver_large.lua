-- A large message costs 1.5 ms per MB each time that Lua reads it or makes another string of it. So a large
-- message that is due is handed out directly, without the detour over its ready list.

-- include: deliver

-- Whether this consumer would take the due message `stored` next.
local function is_next(stored, queues, steps)
  local step_index = 1
  while steps[step_index] ~= stored_step(stored) do
    step_index = step_index + 1
    if step_index > #steps then
      return false
    end
  end
  for _, queue in ipairs(queues) do
    local has_keys = queue.fair and redis.call('EXISTS', queue.base .. 'fair') > 0
    if has_keys or redis.call('EXISTS', unpack(queue.ready, 1, step_index)) > 0 then
      return false
    end
  end
  return true
end

-- For migrate(): hands a large message out if it is the next one. Returns whether it has done so. If the
-- message is large but must wait, it sets `batch.migrates_large`: then this take only migrates.
local function deliver_large(batch, queue, stored, queues, steps)
  if #stored < batch.byte_limit then
    return false
  end
  -- In a fair queue, it is the turn of its key that counts.
  if batch.count < batch.limit and not queue.fair and may_take(queue) and is_next(stored, queues, steps) then
    -- The message holds its key, if it has one: migrate() has seen to that.
    local start, tag = stored_start(stored), nth_tag(batch, batch.count)
    if queue.has_unique then
      takes_key(batch, queue, stored, start, tag)
      free_keys(queue, batch.now_ms)
    end
    deliver(batch, queue, stored, start, tag)
    return true
  end
  batch.migrates_large = true
  return false
end
