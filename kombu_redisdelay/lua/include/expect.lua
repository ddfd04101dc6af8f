-- When a script fails, what it has done before stays done. So before a message leaves its place, it is
-- checked here that it can go to the next one: a key of another type raises an error, and so does a command
-- that the user may not run there. Redis 6.2 does not tell that before it refuses the command.
local function expect_right(...)
  if redis.acl_check_cmd and not redis.acl_check_cmd(...) then
    -- This raises what Redis says.
    redis.call(...)
  end
end

-- `push` is the command that puts messages there.
local function expect_list(key, push)
  redis.call('LLEN', key)
  expect_right(push, key, '')
end

local function expect_rights_to_schedule(schedule_key, messages_key)
  expect_right('ZADD', schedule_key, '0', '')
  expect_right('HSETNX', messages_key, '', '')
end

local function expect_schedule(schedule_key, messages_key)
  redis.call('ZCARD', schedule_key)
  redis.call('HLEN', messages_key)
  expect_rights_to_schedule(schedule_key, messages_key)
end
