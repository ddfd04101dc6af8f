-- When the first message is due, in ms since the epoch with a fraction; nil if none is scheduled.
local function first_due(schedule_key)
  return tonumber(redis.call('ZRANGE', schedule_key, '0', '0', 'WITHSCORES')[2])
end

-- Thirty years: a due time may be infinite.
local FOREVER_US = 1e15

-- Microseconds until `due_ms`; -1 if it is nil. Rounded up: a consumer that comes earlier gets nothing.
local function until_us(due_ms, now_us)
  return due_ms and math.min(FOREVER_US, math.max(0, math.ceil(due_ms * 1000) - now_us)) or -1
end

-- Moves due messages of a queue to the tails of their ready lists, in due order. `ready_at` has the list of
-- each priority step. A message with a step that is no longer used goes to `ready_name`, because no consumer
-- would look at the list of its step. `budget` says how many `messages` and `bytes` may still be moved, and
-- is reduced by those that were. If `takes_over` returns true for a message, it has put it in another place.
-- Returns how many were moved, how many due ids had no message, and the microseconds until the next one
-- left is due (-1: none is scheduled).
local function migrate(schedule_key, messages_key, ready_name, ready_at, now_us, budget, takes_over)
  local now_ms, first = now_us / 1000, first_due(schedule_key)
  if not first or first > now_ms then
    return 0, 0, until_us(first, now_us)
  end
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
    for _, ready in pairs(ready_at) do
      expect_list(ready)
    end
    redis.call('ZREM', schedule_key, unpack(ids))
    redis.call('HDEL', messages_key, unpack(ids))
    for _, stored in ipairs(messages) do
      if not (takes_over and takes_over(stored)) then
        redis.call('LPUSH', ready_at[stored_step(stored)] or ready_name, stored_payload(stored))
      end
    end
    budget.messages = budget.messages - #ids
  end
  return #messages, missing, until_us(first_due(schedule_key), now_us)
end
