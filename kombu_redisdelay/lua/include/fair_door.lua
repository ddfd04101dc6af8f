-- The door of a fair queue (fair.lua): its stock ready lists. Everybody pushes there, and what is found there
-- is put into the lists of the keys. When a queue is not fair any more, its messages go back there, in the
-- order of their turns. Both are done in portions: `budget` says how many `messages` and `bytes` may still be
-- moved, and from which size on a message is `large`.

-- What it costs to read a key from the headers, in messages.
local DECODED = 4
-- How many keys that were at a limit go back to the turns at a time.
local LIMITED_AT_ONCE = 100

-- Puts messages into the lists of the `keys`.
local function put_last(fair, lane, keys, by_key)
  local turns, clock = {}, turn_text(lane.clock)
  for _, key in ipairs(keys) do
    local at, is_only = push_to_key('LPUSH', fair.base, lane.step, key, by_key[key])
    if is_only then
      turns[#turns + 1], turns[#turns + 2] = clock, at
    end
  end
  if #turns > 0 then
    redis.call('ZADD', lane.zset, 'NX', unpack(turns))
  end
end

-- Sorts messages of the list `door` into a lane. Returns how many.
local function sort_in(fair, lane, door, budget)
  local by_key, keys, count, bytes, at_once = {}, {}, 0, 0, 1
  local left = budget.messages
  while budget.messages > 0 and budget.bytes > 0 do
    local some = redis.call('RPOP', door, at_once) or {}
    for _, payload in ipairs(some) do
      local key, keyed, is_decoded = key_and_payload(payload)
      local of_key = by_key[key]
      if of_key then
        of_key[#of_key + 1] = keyed
      else
        by_key[key] = { keyed }
        keys[#keys + 1] = key
      end
      budget.messages = budget.messages - (is_decoded and DECODED or 1)
      budget.bytes = budget.bytes - #payload
      budget.had_large = budget.had_large or #payload >= budget.large
      count, bytes = count + 1, bytes + #payload
    end
    if #some < at_once then
      break
    end
    -- By what those so far have cost.
    local in_bytes = budget.bytes / (bytes / count + 1)
    local in_messages = budget.messages * count / (left - budget.messages)
    at_once = math.max(1, math.floor(math.min(count * 8, in_messages, in_bytes)))
  end
  put_last(fair, lane, keys, by_key)
  lane.n, lane.is_used = lane.n + count, lane.is_used or count > 0
  note_work(fair, (left - budget.messages) * SORTED_IN)
  return count
end

-- Moves messages of a lane back to the list `door`.
local function move_out(fair, lane, door, budget)
  local payloads = {}
  while budget.messages > 0 and budget.bytes > 0 do
    local payload = next_in_turn(fair, lane, budget.messages)
    if not payload then
      break
    end
    payloads[#payloads + 1] = payload
    budget.messages, budget.bytes = budget.messages - 1, budget.bytes - #payload
  end
  if #payloads > 0 then
    redis.call('LPUSH', door, unpack(payloads))
  end
end

-- Moves messages of steps that are no longer used to the door of another step, as migrate() does with what is
-- scheduled: nobody would take them. Returns how many.
local function move_strays(fair, door, budget)
  local left = budget.messages
  for _, lane in ipairs(fair.strays) do
    move_out(fair, lane, door, budget)
    close_lane(fair, lane)
  end
  return left - budget.messages
end

-- For a queue that is not fair any more: moves messages back, whatever limits their keys have. When nothing
-- is left in the lists of keys, nothing is left of the fair queue but the limits that an operator has set.
local function move_back(fair, doors, budget)
  local limited, keys = redis.call('HSCAN', fair.base .. 'limited', '0', 'COUNT', LIMITED_AT_ONCE)[2], {}
  for i = 1, #limited, 2 do
    keys[#keys + 1] = limited[i]
  end
  unlimit(fair.base, keys)
  for index, lane in ipairs(fair.lanes) do
    move_out(fair, lane, doors[index], budget)
    close_lane(fair, lane)
  end
  if redis.call('EXISTS', fair.base .. 'fair') == 0 then
    redis.call('HDEL', fair.base .. 'control', 'fair')
    redis.call('UNLINK', fair.base .. 'limited', fair.base .. 'tats', fair.base .. 'alarms')
  end
end
