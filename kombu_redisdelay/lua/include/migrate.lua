-- Moves due messages of a queue to the tails of their ready lists, in due order. `ready_keys` are those that
-- somebody looks into; a message with a priority step that is none any more goes to that of step 0. `budget`
-- says how many `messages` and `bytes` may still be moved, and is reduced by what was.
-- Returns how many were moved, how many due ids had no message, and the due time of the next one left (ms;
-- nil if none is scheduled).
local function migrate(schedule_key, messages_key, ready_keys, ready_name, separator, now_ms, budget)
  local due = redis.call('ZRANGEBYSCORE', schedule_key, '-inf', now_ms, 'LIMIT', 0, budget.messages)
  local ids, messages, missing = {}, {}, 0
  for _, id in ipairs(due) do
    if budget.bytes <= 0 then
      break
    end
    local stored = redis.call('HGET', messages_key, id)
    if stored then
      messages[#messages + 1] = stored
      budget.bytes = budget.bytes - #stored
    else
      missing = missing + 1
    end
    ids[#ids + 1] = id
  end
  if #ids > 0 then
    local is_read = {}
    for _, ready in ipairs(ready_keys) do
      expect_list(ready)
      is_read[ready] = true
    end
    redis.call('ZREM', schedule_key, unpack(ids))
    redis.call('HDEL', messages_key, unpack(ids))
    for _, stored in ipairs(messages) do
      local ready = ready_key(ready_name, separator, stored_step(stored))
      redis.call('LPUSH', is_read[ready] and ready or ready_name, stored_payload(stored))
    end
    budget.messages = budget.messages - #ids
  end
  return #messages, missing, tonumber(redis.call('ZRANGE', schedule_key, 0, 0, 'WITHSCORES')[2])
end
