-- include: base

-- How many messages of a fair queue (fair.lua) are sorted by key, of all steps.
local function sorted_by_key(base)
  local scan, count = redis.pcall('HSCAN', base .. 'fair', 0), 0
  -- A small hash is read whole. An error if another program has put something else there.
  local found = scan[2] or {}
  for i = 1, #found, 2 do
    -- What another program has written there is no number of messages.
    if string.sub(found[i], 1, 2) == 'n:' and string.match(found[i + 1], '^%d+$') and #found[i + 1] <= 15 then
      count = count + tonumber(found[i + 1])
    end
  end
  return count
end

-- How many messages of a queue are ready or scheduled.
local function length(ready, schedule_key)
  local count = redis.call('ZCARD', schedule_key) + sorted_by_key(base_of(schedule_key))
  for _, list in ipairs(ready) do
    count = count + redis.call('LLEN', list)
  end
  return count
end
