-- When a script fails, what it has done before stays done. So before a message leaves its place, the type of
-- the key that it goes to is checked here: a key of another type raises an error.
local function expect_list(key)
  redis.call('LLEN', key)
end

local function expect_schedule(schedule_key, messages_key)
  redis.call('ZCARD', schedule_key)
  redis.call('HLEN', messages_key)
end
