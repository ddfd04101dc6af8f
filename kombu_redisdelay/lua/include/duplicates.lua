-- Several messages may be scheduled under one id. The first is known by the id itself, each other one, a
-- duplicate, by the id, a separator, and something that makes it unique. To find them without reading the
-- whole schedule they are listed in a zset of their own, all with score 0, which Redis keeps sorted by name.
-- One that was delivered stays listed until somebody comes across it here.
local DUPLICATE = '\31'
local AFTER_DUPLICATES = '\32'

-- Names of duplicates of `id`, at most `limit`, those that follow the name `after` if it is one.
local function duplicates_of(duplicates_key, id, after, limit)
  local min = '[' .. id .. DUPLICATE
  if after ~= '' and after ~= id then
    min = '(' .. after
  end
  return redis.call('ZRANGEBYLEX', duplicates_key, min, '(' .. id .. AFTER_DUPLICATES, 'LIMIT', 0, limit)
end

-- Looks at a few of all duplicates, and forgets those that are not scheduled any more.
local function forget_duplicates(duplicates_key, messages_key, how_many)
  for _, member in ipairs(redis.call('ZRANDMEMBER', duplicates_key, how_many)) do
    if redis.call('HEXISTS', messages_key, member) == 0 then
      redis.call('ZREM', duplicates_key, member)
    end
  end
end

-- Takes a message off the schedule, by the name that it has there. Returns 1 if there was one, else 0.
local function unschedule(schedule_key, messages_key, duplicates_key, member)
  local removed = redis.call('HDEL', messages_key, member)
  redis.call('ZREM', schedule_key, member)
  redis.call('ZREM', duplicates_key, member)
  return removed
end
