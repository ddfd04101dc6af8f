-- Sorts the messages of a fair queue by key (fair.lua). Everybody pushes to the unsorted lists, which are
-- the stock ready lists, and what is found there is put into the lists of the keys. When a queue is not to be
-- fair any more, its messages go back there: of each key the last ones first, to the end that is taken from.
-- Until all are back, takes prefer what is left in the lists of the keys. So the messages of a key stay in
-- order, also if the queue is made fair again meanwhile. All of this is done in portions: `budget` says how
-- many `messages` and `bytes` may still be moved, and from which size on a message is `large`.

-- include: fair_end
-- include: fair_order

-- What it costs to read a key from the headers, and to push to the list of one more key, in messages.
local DECODED, ONE_MORE_KEY = 4, 1
-- How many keys that were at a limit go back to the turns at a time.
local LIMITED_AT_ONCE = 100

-- Puts messages into the lists of the `keys`.
local function put_last(fair, order, keys, by_key)
  local turns, had_messages = {}, {}
  for _, key in ipairs(keys) do
    local at, is_only = push_to_key('LPUSH', fair.base, order.step, key, by_key[key])
    if is_only then
      order.arrivals = order.arrivals + 1
      turns[#turns + 1], turns[#turns + 2] = turn_text(FIRST_ARRIVAL + order.arrivals), at
    else
      had_messages[#had_messages + 1] = at
    end
  end
  if #turns > 0 then
    redis.call('ZADD', order.zset, 'NX', unpack(turns))
  end
  local lost = keys_without_turn(fair.base, order.step, had_messages)
  if #lost > 0 then
    give_turns(fair.base, order.step, lost, FIRST_ARRIVAL + order.arrivals + 1, 1)
    order.arrivals = order.arrivals + #lost
    lose_count_of(order)
  end
end

-- Sorts messages of the list `unsorted`, that of the priority step of `order`. Returns how many.
local function sort_by_key(fair, order, unsorted, budget)
  local by_key, keys, count, bytes, at_once = {}, {}, 0, 0, 1
  local left = budget.messages
  while budget.messages > 0 and budget.bytes > 0 do
    local some = redis.call('RPOP', unsorted, at_once) or {}
    for _, payload in ipairs(some) do
      local key, stored, is_decoded = key_and_payload(payload)
      local of_key = by_key[key]
      if of_key then
        of_key[#of_key + 1] = stored
      else
        by_key[key] = { stored }
        keys[#keys + 1] = key
        budget.messages = budget.messages - ONE_MORE_KEY
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
  put_last(fair, order, keys, by_key)
  order.n, order.is_used = order.n + count, order.is_used or count > 0
  note_work(fair, (left - budget.messages) * SORTED)
  return count
end

-- Moves messages of a priority step to the list `unsorted`, in its order.
local function move_out(fair, order, unsorted, budget)
  local payloads = {}
  while budget.messages > 0 and budget.bytes > 0 do
    local payload = next_in_turn(fair, order, budget.messages)
    if not payload then
      break
    end
    payloads[#payloads + 1] = payload
    budget.messages, budget.bytes = budget.messages - 1, budget.bytes - #payload
  end
  if #payloads > 0 then
    redis.call('LPUSH', unsorted, unpack(payloads))
  end
end

-- Moves messages of steps that are no longer used to the unsorted list of another, as migrate() does with
-- what is scheduled: nobody would take them. Returns how many.
local function move_unused(fair, unsorted, budget)
  local left = budget.messages
  for _, order in ipairs(fair.unused) do
    move_out(fair, order, unsorted, budget)
    close_order(fair, order)
  end
  return left - budget.messages
end

-- The last messages of a key, the very last one first. They leave its list.
local function last_of_key(fair, order, key, count)
  local list = key_list(fair.base, order.step, key)
  -- Another program may have put something else there.
  local some = redis.pcall('LRANGE', list, 0, count - 1)
  if some.err or #some == 0 then
    return {}
  end
  redis.call('LTRIM', list, #some, -1)
  return some
end

-- Moves messages of a priority step back to the list `unsorted`.
local function move_last(fair, order, unsorted, budget)
  write_turns(fair, order)
  local payloads, bytes, at_once = {}, 0, 1
  local count = redis.call('ZCARD', order.zset)
  while order.n > 0 and count > 0 and budget.messages > 0 and budget.bytes > 0 do
    -- Not always the same keys first: these would be behind all others.
    local some = math.min(count, MOST_LOOKED_AT, budget.messages)
    local first = (fair.seed + #payloads) % (count - some + 1)
    local of_keys = {}
    for i, key in ipairs(redis.call('ZRANGE', order.zset, first, first + some - 1)) do
      of_keys[i] = budget.bytes > 0 and last_of_key(fair, order, key, at_once) or {}
      for _, payload in ipairs(of_keys[i]) do
        budget.bytes = budget.bytes - #payload
      end
      count_out(order, #of_keys[i])
      budget.messages = budget.messages - #of_keys[i]
      if #of_keys[i] == 0 and budget.bytes > 0 then
        count = count - redis.call('ZREM', order.zset, key)
      end
    end
    -- One of each key in turn.
    for n = 1, at_once do
      for _, some_of_key in ipairs(of_keys) do
        if some_of_key[n] then
          payloads[#payloads + 1], bytes = some_of_key[n], bytes + #some_of_key[n]
        end
      end
    end
    -- By what those so far have.
    local in_bytes = budget.bytes / (bytes / math.max(1, #payloads) + 1)
    at_once = math.max(1, math.floor(math.min(budget.messages, in_bytes) / some))
  end
  if #payloads > 0 then
    redis.call('RPUSH', unsorted, unpack(payloads))
  end
end

-- For a queue that is not to be fair any more: lets some keys go on that were at a limit. To be called before
-- move_back(), which moves what has a turn.
local function free_some(fair)
  local cursor, keys = '0', {}
  repeat
    -- The first part of a hash may be empty.
    local scan = redis.call('HSCAN', fair.base .. 'limited', cursor, 'COUNT', LIMITED_AT_ONCE)
    cursor = scan[1]
    for i = 1, #scan[2], 2 do
      keys[#keys + 1] = scan[2][i]
    end
  until cursor == '0' or #keys > 0
  unlimit(fair.base, keys)
end

-- Returns how many messages of a priority step are left.
local function move_order_back(fair, order, unsorted, budget)
  expect_turns(fair, order)
  expect_right('LPUSH', unsorted, '')
  move_last(fair, order, unsorted, budget)
  if redis.call('EXISTS', order.zset, fair.base .. 'limited') == 0 then
    -- Whatever it says: another program has removed their lists. Else this would not end, and until then
    -- nothing of the unsorted list is taken. Before the queue was switched off, each list has got a turn that
    -- had none (relist.lua).
    order.n = 0
  end
  close_order(fair, order)
  return math.max(0, order.n)
end

-- For a queue that is not to be fair any more: moves messages back.
local function move_back(fair, unsorted_lists, budget)
  local left = 0
  for index, order in ipairs(fair.orders) do
    left = left + move_order_back(fair, order, unsorted_lists[index], budget)
  end
  for _, order in ipairs(fair.unused) do
    left = left + move_order_back(fair, order, unsorted_lists[index_of_0(fair.orders)], budget)
  end
  if left == 0 then
    -- Also what another program has written there.
    redis.call('UNLINK', fair.base .. 'fair')
  end
  end_fairness(fair.base)
end
