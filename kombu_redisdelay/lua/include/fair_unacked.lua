-- Who holds messages of which key: in a fair queue whose keys have a limited concurrency.
--   unacked-keys   hash: <consumer> \30 <delivery tag> -> key
--   active         hash: key -> how many of its messages are unacked
-- They are counted when the limit is set (count_keys.lua), and then by the scripts that move them. What
-- leaves the unacked hash in another way is found by check_keys.lua.

-- The clock of a step goes back by this when it is greater (fair_turns.lua).
local REBASE = 2 ^ 52

-- Lets a key have its turn again that was at a limit. Returns whether it has any message.
local function unlimit(base, key)
  local found = redis.call('HGET', base .. 'limited', key)
  if not found then
    return false
  end
  redis.call('HDEL', base .. 'limited', key)
  local has_any = false
  for step, digits in string.gmatch(found, '(%d+) (%d+)') do
    if redis.call('EXISTS', key_list(base, step, key)) == 1 then
      local clock, at = clock_of(base, step), tonumber(digits)
      if at > clock + REBASE / 2 then
        at = at - REBASE
      end
      redis.call('ZADD', base .. 'turns:' .. step, turn_text(math.max(clock, at)), key)
      has_any = true
    end
  end
  return has_any
end

-- Whether any message of a key is counted.
local function counts_keys(base)
  return redis.call('EXISTS', base .. 'unacked-keys') == 1
end

-- To be called for each message that has left the hash `unacked_key`. Returns whether it was counted.
local function release_key(base, unacked_key, tag)
  local holder = string.sub(unacked_key, #base + #'unacked:' + 1) .. '\30' .. tag
  local key = redis.pcall('HGET', base .. 'unacked-keys', holder)
  if type(key) ~= 'string' then
    return false
  end
  redis.call('HDEL', base .. 'unacked-keys', holder)
  if redis.call('HINCRBY', base .. 'active', key, '-1') <= 0 then
    redis.call('HDEL', base .. 'active', key)
  end
  if unlimit(base, key) then
    wake(base .. 'wake')
  end
  return true
end
