-- include: stored

-- The other keys of a queue, from that of its wake zset. kombu_redisdelay/broker/keys.py has all keys.
local OURS, WAKE = 'redisdelay:{', '}:wake'

-- The ready list of step 0. `prefix` is the global_keyprefix. `braces` is how many braces the list has on
-- each side of the queue's name: 1 on a cluster, else 0.
local function ready_of(wake_key, prefix, braces)
  return prefix .. string.sub(wake_key, #prefix + #OURS + 1 - braces, -#WAKE - 1 + braces)
end

-- The ready list of each of the `steps`, in the same order. `name` is that of step 0.
local function ready_lists(name, separator, steps)
  local lists = {}
  for index, step in ipairs(steps) do
    lists[index] = ready_key(name, separator, step)
  end
  return lists
end

-- The index of the first step that has a ready message; nil if there is none.
local function first_ready_step(lists)
  if redis.call('EXISTS', unpack(lists)) == 0 then
    return nil
  end
  local index = 1
  while redis.call('EXISTS', lists[index]) == 0 do
    index = index + 1
  end
  return index
end
