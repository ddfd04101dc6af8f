-- A fair queue serves its keys in turn: nobody waits for another's backlog. The stock ready lists are its
-- *unsorted lists*: everybody pushes there, as to any queue, and the takes sort what they find by key
-- (fair_sort.lua): each key has a list of its own for each priority step. Most queues are not fair: for
-- these, a script reads one field, or nothing. `base` is what the keys of the queue begin with. They are
--   control              fair, "on", or "off" while what was sorted is moved back; and the limits of keys
--                        (fair_limits.lua)
--   fair                 hash: for each step, n:<step> how many messages are sorted, is_uncounted:<step>
--                        if that is not known, and its clock (fair_order.lua)
--   turns:<step>         zset: key -> when its next turn begins, by the clock of the step
--   <step>:<key>         list: the messages, as in a ready list; step 0 is not written. Its name is short,
--                        because many keys have one message only
--   limited              hash: key -> pairs of a step and when its turn begins, of keys that have messages
--                        and may not be served now
-- and those of fair_limits.lua and fair_unacked.lua.
--
-- A list that is not empty has its key either in the turns of the step or in `limited`. But each of these may
-- be lost: Redis may evict it, or somebody may delete it. That must cost no more than what was in it. So
-- a key whose list had messages gets a turn again if it has none (give_turns()). Then it is not known
-- any more how many messages are sorted, and the step is open until that is counted anew (fair_count.lua):
-- else it would be closed too early, and the rest would have no turn. What no later message finds, a search
-- of the database does (relist.lua).

-- What the hash `fair` has for each step.
local STEP_FIELDS = { 'n', 'clock', 'since', 'is_rebasing', 'arrivals', 'is_last_next', 'is_uncounted' }

-- "on" or "off" if the queue is fair.
local function fair_state(base)
  local state = redis.pcall('HGET', base .. 'control', 'fair')
  return (state == 'on' or state == 'off') and state or nil
end

local function key_list(base, step, key)
  return base .. (step == '0' and '' or step) .. ':' .. key
end

local function clock_of(base, step)
  return tonumber(redis.pcall('HGET', base .. 'fair', 'clock:' .. step)) or 0
end

-- Text of a time of the clock: a whole number. Lua would write large ones with an exponent.
local function turn_text(at)
  return string.format('%d', at)
end

-- Pushes messages to the list of their key. Returns the key in whose list they are, and whether it has no
-- others.
local function push_to_key(command, base, step, key, payloads)
  local length = redis.pcall(command, key_list(base, step, key), unpack(payloads))
  if type(length) ~= 'number' then
    -- Another program has put something else there.
    key = ''
    length = redis.call(command, key_list(base, step, key), unpack(payloads))
  end
  return key, length == #payloads
end

-- To be called when a step has no messages: nothing is left of it.
local function forget_step(base, step)
  local names = {}
  for i, name in ipairs(STEP_FIELDS) do
    names[i] = name .. ':' .. step
  end
  redis.call('UNLINK', base .. 'turns:' .. step)
  redis.call('HDEL', base .. 'fair', unpack(names))
end

-- Whether a key that waits at a limit has messages in a step: `turns` is what the hash `limited` has for it.
local function waits_in(step, turns)
  for other in string.gmatch(turns, '(%d+) %-?%d+') do
    if other == step then
      return true
    end
  end
  return false
end

-- Notes that it is not known how many messages of a step are sorted. Those that have turns are served.
local function lose_count(base, step)
  redis.call('HSETNX', base .. 'fair', 'n:' .. step, '1')
  redis.call('HSET', base .. 'fair', 'is_uncounted:' .. step, '1')
end

-- Those of the keys that have no turn and do not wait at a limit. If their lists have messages, what told of
-- them was lost.
local function keys_without_turn(base, step, keys)
  local turns = #keys > 0 and redis.call('ZMSCORE', base .. 'turns:' .. step, unpack(keys)) or {}
  local without = {}
  for i, key in ipairs(keys) do
    if not turns[i] then
      without[#without + 1] = key
    end
  end
  local limited = #without > 0 and redis.call('HMGET', base .. 'limited', unpack(without)) or {}
  local lost = {}
  for i, key in ipairs(without) do
    if not limited[i] or not waits_in(step, limited[i]) then
      lost[#lost + 1] = key
    end
  end
  return lost
end

-- Gives turns to keys that have lost them: the first one begins at `first`, each other one `apart` later.
local function give_turns(base, step, keys, first, apart)
  local turns = {}
  for i, key in ipairs(keys) do
    turns[#turns + 1], turns[#turns + 2] = turn_text(first + (i - 1) * apart), key
  end
  redis.call('ZADD', base .. 'turns:' .. step, 'NX', unpack(turns))
end

-- Puts a message to the head of the list of its key, where it is the next one of its key. `had_messages` has
-- for each step the keys whose lists had messages: for turns_of_first().
local function put_first(base, step, key, payload, had_messages)
  local at, is_only = push_to_key('RPUSH', base, step, key, { payload })
  local zset = base .. 'turns:' .. step
  if is_only then
    redis.call('ZADD', zset, 'NX', turn_text(clock_of(base, step)), at)
  else
    had_messages[step] = had_messages[step] or {}
    table.insert(had_messages[step], at)
  end
  local count = redis.pcall('HINCRBY', base .. 'fair', 'n:' .. step, '1')
  if type(count) ~= 'number' then
    -- Another program has written something else there.
    redis.call('HDEL', base .. 'fair', 'n:' .. step)
    lose_count(base, step)
  elseif count == 1 and redis.call('ZCARD', zset) > 1 then
    lose_count(base, step)
  end
end

-- To be called after put_first(), for all messages together.
local function turns_of_first(base, had_messages)
  for step, keys in pairs(had_messages) do
    local lost = keys_without_turn(base, step, keys)
    if #lost > 0 then
      give_turns(base, step, lost, clock_of(base, step), 0)
      lose_count(base, step)
    end
  end
end
