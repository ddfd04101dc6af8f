-- A fair queue serves its keys in turn: nobody waits for another's backlog. The stock ready lists are its
-- *door*: everybody pushes there, as to any queue, and the takes sort in what they find (fair_door.lua). In
-- it, each key has a list of its own for each priority step. Most queues are not fair: for these, a script
-- reads one field, or nothing. `base` is what the keys of the queue begin with. They are
--   control              fair, "on", or "off" while what was sorted in is moved back; and the limits of keys
--                        (fair_limits.lua)
--   fair                 hash: for each step, n:<step> how many messages are sorted in, and its clock
--                        (fair_turns.lua)
--   turns:<step>         zset: key -> when its next turn begins, by the clock of the step
--   <step>:<key>         list: the messages, as in a ready list; step 0 is not written. Its name is short,
--                        because many keys have one message only
--   limited              hash: key -> pairs of a step and when its turn begins, of keys that have messages
--                        and may not be served now
-- and those of fair_limits.lua, fair_unacked.lua and fair_earlier.lua.
--
-- A list that is not empty has its key either in the turns of the step or in `limited`.

-- "on" or "off" if the queue is fair.
local function fair_state(base)
  local state = redis.pcall('HGET', base .. 'control', 'fair')
  return (state == 'on' or state == 'off') and state or nil
end

local function key_list(base, step, key)
  return base .. (step == '0' and '' or step) .. ':' .. key
end

local function clock_of(base, step)
  return tonumber(redis.call('HGET', base .. 'fair', 'clock:' .. step)) or 0
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

-- Puts a message to the head of the list of its key, where it is the next one of its key.
local function put_first(base, step, key, payload)
  local at, is_only = push_to_key('RPUSH', base, step, key, { payload })
  if is_only then
    redis.call('ZADD', base .. 'turns:' .. step, 'NX', turn_text(clock_of(base, step)), at)
  end
  if type(redis.pcall('HINCRBY', base .. 'fair', 'n:' .. step, '1')) ~= 'number' then
    -- Another program has written something else there.
    redis.call('HSET', base .. 'fair', 'n:' .. step, '1')
  end
end
