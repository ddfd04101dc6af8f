-- include: clock
-- include: duplicates
-- include: wake

-- Stores a message under its id, and returns the name that it has in the schedule. An id that is already
-- there belongs to another message, which must not be overwritten. Then this one becomes a duplicate: the
-- server's time is appended to its name, and again if another message has that name, too.
local function store_under_id(messages_key, duplicates_key, id, stored)
  local member = id
  while redis.call('HSETNX', messages_key, member, stored) == 0 do
    member = member .. DUPLICATE .. string.format('%.0f', clock_us())
  end
  if member ~= id then
    -- Three for each one that is added, so that most of the listed duplicates are scheduled.
    forget_duplicates(duplicates_key, messages_key, 3)
    redis.call('ZADD', duplicates_key, 0, member)
  end
  return member
end

-- Puts a message on the schedule. If it is now the first to be due, it wakes a consumer, which then learns
-- when to come back. Returns the name that it has there.
local function schedule(schedule_key, messages_key, duplicates_key, wake_key, id, due_ms, stored)
  local member = store_under_id(messages_key, duplicates_key, id, stored)
  redis.call('ZADD', schedule_key, due_ms, member)
  if redis.call('ZRANGE', schedule_key, 0, 0)[1] == member then
    wake(wake_key)
  end
  return member
end
