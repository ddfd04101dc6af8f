-- What a script did before it failed stays done. So before a message leaves its place, the key that it is
-- to go to is asked whether it can have it: one that holds something else raises here.
local function expect_list(key)
  redis.call('LLEN', key)
end

local function expect_schedule(schedule_key, messages_key)
  redis.call('ZCARD', schedule_key)
  redis.call('HLEN', messages_key)
end
