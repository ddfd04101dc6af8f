-- A message that has left its place (leave.lua) arrives in another one. Of its queue, this needs the
-- keys ready (the list of step 0), wake, schedule, messages and duplicates, as far as it goes there, and
--   separator    between the name of a ready list and its step
--   expires_ms   x-expires of the queue, ms (0: none)
--   keys         what read_features() has found out (leave.lua)

-- include: base
-- include: expect
-- include: expire
-- include: leave
-- include: schedule

-- The ready list of a step.
local function list_in(queue, step)
  return ready_key(queue.ready, queue.separator, step)
end

-- The same, for what looks for messages with unique keys.
local function lists_of(queue)
  return function(step)
    return list_in(queue, step)
  end
end

-- To the 'head' or the 'tail' of its ready list. To be called before it leaves.
local function expect_ready(message, where)
  local queue, push = message.queue, where == 'head' and 'RPUSH' or 'LPUSH'
  expect_list(list_in(queue, message.step), push)
  if where == 'head' and queue.keys and queue.keys.are_sorted then
    expect_right(push, queue.base .. message.step .. ':', '')
  end
end

-- The unique key of a message that nobody holds, nil if it has none, and the id of the message that has the
-- key, nil if none has. Notes its own id.
local function key_and_holder(message, now_ms)
  local queue, with_key = message.queue, unique(message)
  if not with_key then
    return nil
  end
  local holder, id, key =
    with_key.look_for_holder(queue.base, message.stored, message.start, now_ms, lists_of(queue))
  message.id = id
  return key, holder
end

-- Its unique key comes with it. `state` and `member` are those of unique.lua.
local function bring_key(message, state, member, now_ms)
  local queue = message.queue
  if message.unique_key then
    unique(message).keep(message.unique_key, state, message.step, now_ms, member)
  elseif not message.tag then
    local with_key = unique(message)
    if with_key then
      with_key.hold_or_keep(queue.base, message.stored, state, now_ms, member, lists_of(queue))
    end
  end
end

local function becomes_ready(message, where, payload, now_ms)
  local queue, step, unique_key = message.queue, message.step, message.unique_key
  local ready = list_in(queue, step)
  if where == 'tail' then
    redis.call('LPUSH', ready, payload)
  elseif queue.keys and queue.keys.are_sorted then
    queue.keys.arrive_first(step, payload)
  else
    redis.call('RPUSH', ready, payload)
  end
  bring_key(message, 'r', unique_key and unique_key.id or message.id, now_ms)
  expire(queue.expires_ms, { ready })
end

-- Whether becomes_due() would return true.
local function may_be_due(message, now_ms)
  local with_key = unique(message)
  if not with_key then
    return true
  end
  local base, list_of = message.queue.base, lists_of(message.queue)
  local _, _, _, is_busy = with_key.look(base, message.member, message.stored, now_ms, list_of)
  return not is_busy
end

-- A scheduled message goes to the tail of its ready list. If it has to wait for its unique key, it stays, is
-- blocked, and this returns false.
local function becomes_due(message, payload, now_ms)
  local queue, step, list_of = message.queue, message.step, lists_of(message.queue)
  local with_key, member, stored = unique(message), message.member, message.stored
  if with_key and not with_key.may_become_ready(queue.base, member, stored, step, now_ms, list_of) then
    return false
  end
  leave(message)
  redis.call('LPUSH', list_of(step), payload)
  -- In a queue with x-expires, the ready lists live as long as the schedule did.
  expire(queue.expires_ms, { list_of(step), queue.wake })
  return true
end

-- To the schedule, under this id. Returns the name that it has there. expect_schedule() comes before.
-- `state` is that of unique.lua: 's' if it has not begun.
local function becomes_scheduled(message, id, due_ms, stored, now_ms, state)
  local queue = message.queue
  local member = schedule(queue.schedule, queue.messages, queue.duplicates, queue.wake, id, due_ms, stored)
  bring_key(message, state or 'a', member, now_ms)
  expire(queue.expires_ms, { queue.schedule, queue.messages, queue.wake, queue.duplicates })
  return member
end
