-- Removes messages of a fair queue that are sorted. Bounded: call it until none is left. What is unacked
-- stays counted, and keys keep their limits.
--
-- KEYS[1]  wake zset
-- ARGV[1]  how many keys at most
--
-- Returns  how many messages were removed; 1 if nothing is left, else 0; 1 if the queue is or was fair

-- include: fair
-- include: history

local base, left = base_of(KEYS[1]), tonumber(ARGV[1])
local was_fair = (fair_state(base) or redis.call('EXISTS', base .. 'fair', base .. 'limited') > 0) and 1 or 0

-- Removes the lists of some keys in a step. Returns how many messages they had.
local function remove_lists(step, keys)
  local count, lists = 0, {}
  for i, key in ipairs(keys) do
    lists[i] = key_list(base, step, key)
    count = count + redis.call('LLEN', lists[i])
  end
  redis.call('UNLINK', unpack(lists))
  -- Lua writes -0 for a negated 0, which Redis does not read.
  -- An error if another program has written something else there. The hash goes at the end.
  redis.pcall('HINCRBY', base .. 'fair', 'n:' .. step, 0 - count)
  left = left - #keys
  return count
end

local function remove_turns(step)
  local count, zset = 0, base .. 'turns:' .. step
  local keys = redis.call('ZRANGE', zset, 0, left - 1)
  if #keys > 0 then
    redis.call('ZREM', zset, unpack(keys))
    count = remove_lists(step, keys)
  end
  return count
end

local function remove_limited()
  local count, cursor = 0, '0'
  repeat
    -- Of a hash that was larger, it may return fewer than there are.
    local scan = redis.call('HSCAN', base .. 'limited', cursor, 'COUNT', left)
    cursor = scan[1]
    for i = 1, #scan[2], 2 do
      redis.call('HDEL', base .. 'limited', scan[2][i])
      for step in string.gmatch(scan[2][i + 1], '(%d+) %-?%d+') do
        count = count + remove_lists(step, { scan[2][i] })
      end
    end
  until cursor == '0' or left <= 0
  return count
end

local removed = redis.call('EXISTS', base .. 'limited') == 1 and remove_limited() or 0
local found = redis.call('HSCAN', base .. 'fair', 0)[2]
for i = 1, #found, 2 do
  local step = string.match(found[i], '^n:(%d+)$')
  if step and left > 0 then
    removed = removed + remove_turns(step)
  end
end
note(KEYS[1], 'other', 0 - removed)
if left <= 0 then
  return { removed, 0, was_fair }
end
redis.call('UNLINK', base .. 'fair', base .. 'alarms')
return { removed, 1, was_fair }
