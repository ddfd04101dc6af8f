-- Puts a message on the schedule under its id. An id that is already there belongs to another message,
-- which must not be overwritten: then this one becomes a duplicate, by the server's time; and if another one
-- has that name, too, by the time once more.
-- A message that became the first to be due wakes a consumer, which then knows when to come back.
local function schedule(schedule_key, messages_key, duplicates_key, wake_key, id, due_ms, stored)
  local member = id
  while redis.call('HSETNX', messages_key, member, stored) == 0 do
    member = member .. DUPLICATE .. string.format('%.0f', clock_us())
  end
  if member ~= id then
    -- More than one for one, so that most of those that are listed are scheduled.
    forget_duplicates(duplicates_key, messages_key, 3)
    redis.call('ZADD', duplicates_key, 0, member)
  end
  redis.call('ZADD', schedule_key, due_ms, member)
  if redis.call('ZRANGE', schedule_key, 0, 0)[1] == member then
    wake(wake_key)
  end
end
