-- include: expect
-- include: first_due
-- include: unique

-- Moves due messages of a queue to the tails of their ready lists, in due order. `ready_at` has the list of
-- each priority step. A message with a step that is no longer used goes to `ready_name`, because no consumer
-- would look at the list of its step. `budget` says how many `messages` and `bytes` may still be moved, and
-- is reduced by those that were. If `takes_over` returns true for a message, it has put it in another place.
-- A message that has to wait for its key stays, and is blocked (unique.lua). `base` is what the keys of the
-- queue begin with. Returns how many were moved, how many due ids had no message, and the microseconds until
-- the next one left is due (-1: none is scheduled).
local function migrate(base, ready_name, ready_at, now_us, budget, takes_over)
  local schedule_key, messages_key = base .. 'schedule', base .. 'messages'
  local now_ms, first = now_us / 1000, first_due(schedule_key)
  if not first or first > now_ms then
    return 0, 0, until_us(first, now_us)
  end
  local due = redis.call('ZRANGEBYSCORE', schedule_key, '-inf', now_ms, 'LIMIT', 0, budget.messages)
  for _, ready in pairs(ready_at) do
    expect_list(ready, 'LPUSH')
  end
  local function list_of(step)
    return ready_at[step] or ready_name
  end
  local function step_of(stored)
    local step = stored_step(stored)
    return ready_at[step] and step or '0'
  end
  local ids, messages, missing, has_keys = {}, {}, 0, has_unique(base)
  for _, id in ipairs(due) do
    if budget.bytes <= 0 then
      break
    end
    local stored = redis.call('HGET', messages_key, id)
    budget.bytes = budget.bytes - (stored and #stored or 0)
    local is_free, bytes = true, 0
    if stored and has_keys then
      is_free, bytes = may_become_ready(base, id, stored, step_of(stored), now_ms, list_of)
    end
    budget.bytes = budget.bytes - bytes
    if not stored then
      missing = missing + 1
    elseif is_free then
      messages[#messages + 1] = stored
    end
    if is_free then
      ids[#ids + 1] = id
    end
  end
  if #ids > 0 then
    redis.call('ZREM', schedule_key, unpack(ids))
    redis.call('HDEL', messages_key, unpack(ids))
    for _, stored in ipairs(messages) do
      if not (takes_over and takes_over(stored)) then
        redis.call('LPUSH', list_of(stored_step(stored)), stored_payload(stored))
      end
    end
    budget.messages = budget.messages - #ids
  end
  return #messages, missing, until_us(first_due(schedule_key), now_us)
end
