-- How many messages of a queue are ready or scheduled.
local function length(ready, schedule_key)
  local count = redis.call('ZCARD', schedule_key)
  for _, list in ipairs(ready) do
    count = count + redis.call('LLEN', list)
  end
  return count
end
