-- What features have besides in a queue that seems to have nothing in it.

-- Whether it has messages all the same: in a fair queue (fair.lua), these are in the lists of their keys.
local function has_others(base)
  return redis.call('EXISTS', base .. 'fair') == 1
end

-- Removes what is left when it has none: of keys that nobody holds (unique.lua), and of a fair queue whose
-- hash `control` was lost.
local function forget_leftovers(base)
  redis.call('DEL', base .. 'unique', base .. 'running')
  redis.call('DEL', base .. 'limited', base .. 'alarms')
  redis.call('DEL', base .. 'unacked-keys', base .. 'active', base .. 'earlier')
end
