-- Several messages may be scheduled under one id. The name of the first one is the id. Each other one is a
-- duplicate: its name is the id, a separator, and something that makes it unique. A zset lists the
-- duplicates, so that they are found without reading the whole schedule. All have score 0, so Redis sorts
-- them by name. A duplicate that was delivered stays listed until a function below comes across it.
local DUPLICATE = '\31'
local AFTER_DUPLICATES = '\32'

-- The names of at most `limit` duplicates of `id`. If `after` is the name of one, only those after it.
local function duplicates_of(duplicates_key, id, after, limit)
  local min = '[' .. id .. DUPLICATE
  if after ~= '' and after ~= id then
    min = '(' .. after
  end
  return redis.call('ZRANGEBYLEX', duplicates_key, min, '(' .. id .. AFTER_DUPLICATES, 'LIMIT', 0, limit)
end

-- Looks at `how_many` random duplicates, and forgets those that are not scheduled any more.
local function forget_duplicates(duplicates_key, messages_key, how_many)
  for _, member in ipairs(redis.call('ZRANDMEMBER', duplicates_key, how_many)) do
    if redis.call('HEXISTS', messages_key, member) == 0 then
      redis.call('ZREM', duplicates_key, member)
    end
  end
end

-- Takes a message off the schedule, by the name that it has there. Returns 1 if there was one, else 0.
local function unschedule(schedule_key, messages_key, duplicates_key, member)
  redis.call('ZREM', schedule_key, member)
  redis.call('ZREM', duplicates_key, member)
  return redis.call('HDEL', messages_key, member)
end
