-- Who holds messages of which key: in a fair queue whose keys have a limited concurrency.
--   unacked-keys   hash: <consumer> \30 <delivery tag> -> key
--   active         hash: key -> how many of its messages are unacked
-- They are counted when the limit is set (count_keys.lua), and then by the scripts that move them. What
-- leaves the unacked hash in another way is found by check_keys.lua.

-- include: fair
-- include: wake

-- The clock of a step goes back by this when it is greater (fair_order.lua).
local REBASE = 2 ^ 52

-- Lets keys have their turns again that were at a limit. Returns whether any of them has messages. A message
-- may be on its way when this is called: so what another program has put into one of these keys is no error.
local function unlimit(base, keys)
  if #keys == 0 then
    return false
  end
  local found, turns, was_limited = redis.pcall('HMGET', base .. 'limited', unpack(keys)), {}, false
  if found.err then
    return false
  end
  for i, key in ipairs(keys) do
    was_limited = was_limited or found[i]
    for step, digits in string.gmatch(found[i] or '', '(%d+) (%-?%d+)') do
      if redis.call('EXISTS', key_list(base, step, key)) == 1 then
        turns[step] = turns[step] or { clock = clock_of(base, step) }
        local clock, at, of_step = turns[step].clock, tonumber(digits), turns[step]
        if at > clock + REBASE / 2 then
          at = at - REBASE
        end
        -- A newcomer stays one.
        of_step[#of_step + 1] = turn_text(at < 0 and at or math.max(clock, at))
        of_step[#of_step + 1] = key
      end
    end
  end
  if was_limited then
    redis.call('HDEL', base .. 'limited', unpack(keys))
  end
  for step, of_step in pairs(turns) do
    redis.pcall('ZADD', base .. 'turns:' .. step, unpack(of_step))
  end
  return next(turns) ~= nil
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
  local left = redis.pcall('HINCRBY', base .. 'active', key, '-1')
  -- An error if another program has written something else there.
  if type(left) ~= 'number' or left <= 0 then
    redis.pcall('HDEL', base .. 'active', key)
  end
  if unlimit(base, { key }) then
    wake(base .. 'wake')
  end
  return true
end
