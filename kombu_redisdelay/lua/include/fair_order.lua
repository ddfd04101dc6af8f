-- Whose turn it is in a fair queue (fair.lua): start-time fair queueing. The key whose turn begins first is
-- served, one message; its next turn begins a round later, 1,000,000 divided by its weight. Each step has a
-- clock, which is at the latest turn that was served in its order. The clock begins at 0.
--
-- A key that comes is a *newcomer*: it is served before all others, and owes nothing and is owed nothing for
-- the time when it was away. Its turn begins below 0, by the number of its arrival: so newcomers are served
-- in the order in which they came. Where many come together, their second turns would fall together, and make
-- others wait: so each pays a part of its first round only, at random. And where new ones never end, they
-- would starve all others: so `since:<step>` counts the newcomers in a row, and after some of them the first
-- of the others is served. These some are about as many as there are newcomers for each of the others.
--
-- Where many newcomers wait, who came first and who came last are served in turn. So one that comes behind a
-- crowd is served soon, and who is in the crowd waits twice as long at most, whoever comes meanwhile.
--
-- A key without messages leaves when its turn comes, not before: else one that publishes its own successor
-- would always be a newcomer.
--
-- An `order` is the round-robin order of a priority step, in a script:
--   n, clock, since        as in the hash `fair`
--   is_uncounted           1 if `n` is not known: then it is 1 at least, until it is counted anew
--   arrivals               how many keys have come
--   is_last_next           1 if the newcomer that came last is next, if they are a crowd
--   in_a_row               how many newcomers are served in a row
--   is_crowd               whether the newcomers are one
--   latest, latest_at      newcomers and their turns, who came last first, and which of them is the next
--   others, others_at      the same of the first keys that are no newcomers
--   start                  the clock at the beginning
--   entries, at            keys and turns that were read from the zset, and which of them is the next
--   last                   the latest turn among these; nothing that is not read begins before
--   is_all                 whether these are all
--   again, first           the new turns of those that were served, in order, and which of them is the next
--   turns, gone            what is to be written to the zset
--   at_limit               when the turns begin of those that are at a limit and leave for that
--   passed                 keys that were served out of order
--   has_turns              whether the zset has any; nil: not known
--   is_used                whether messages were sorted

-- include: expect
-- include: fair_key
-- include: fair_limits

local ROUND = 1000000
local MOST_IN_A_ROW = 31
-- More newcomers are a crowd.
local CROWD = 32
-- Turns of newcomers begin after this.
local FIRST_ARRIVAL = -REBASE
-- In one script: messages that it takes if it does nothing else, keys that it looks at, and keys that go back
-- with the clock.
local MOST_SERVED, MOST_LOOKED_AT, MOST_REBASED = 80, 300, 200
-- What other work costs, in messages: to sort one; to take one of a key that has limits; to let a key have
-- its turn again, or take it out. Some messages are taken all the same.
local SORTED, OF_LIMITED, LIMITED, MOST_OTHER = 0.25, 2, 0.5, 60

-- Notes that it is not known how many messages of a step are sorted (fair.lua).
local function lose_count_of(order)
  order.is_uncounted, order.n = 1, math.max(1, order.n)
end

-- Notes that `count` messages leave an order.
local function count_out(order, count)
  order.n = order.n - count
  if order.is_uncounted == 1 then
    order.n = math.max(1, order.n)
  end
end

-- Does work of another kind than taking, for which so many messages are taken less.
local function note_work(fair, work)
  fair.work = math.min(MOST_OTHER, fair.work + work)
end

-- Which of the keys that leave because of a limit have messages: these wait, the others are gone.
local function leaving_with_messages(fair, order)
  local keys, lists = {}, {}
  for key in pairs(order.at_limit) do
    keys[#keys + 1] = key
    lists[#lists + 1] = key_list(fair.base, order.step, key)
  end
  -- Usually all.
  if #keys == 0 or redis.call('EXISTS', unpack(lists)) == #keys then
    return keys
  end
  local some = {}
  for i, key in ipairs(keys) do
    if redis.call('EXISTS', lists[i]) == 1 then
      some[#some + 1] = key
    end
  end
  return some
end

local function write_limited(fair, order)
  local keys, limited = leaving_with_messages(fair, order), fair.base .. 'limited'
  if #keys > 0 then
    local found, changes = redis.call('HMGET', limited, unpack(keys)), {}
    for i, key in ipairs(keys) do
      local turn = order.step .. ' ' .. turn_text(order.at_limit[key]) .. ' '
      changes[#changes + 1], changes[#changes + 2] = key, (found[i] or '') .. turn
    end
    work_when_full(fair.base .. 'control')
    redis.call('HSET', limited, unpack(changes))
    set_alarms(fair, keys)
  end
  order.at_limit = {}
end

local function write_turns(fair, order)
  -- First, so that a full Redis allows the rest (full.lua): it may be all that a take does.
  if #order.gone > 0 then
    redis.call('ZREM', order.zset, unpack(order.gone))
  end
  write_limited(fair, order)
  local pairs_of = {}
  for key, at in pairs(order.turns) do
    pairs_of[#pairs_of + 1] = turn_text(at)
    pairs_of[#pairs_of + 1] = key
  end
  if #pairs_of > 0 then
    redis.call('ZADD', order.zset, unpack(pairs_of))
  end
  order.turns, order.gone, order.has_turns = {}, {}, #pairs_of > 0 or nil
end

-- Up to `count` entries that begin after `at` ("-inf": the first), without the first `skipped` of these.
local function read_turns(order, at, skipped, count)
  -- What is not rebased yet comes later.
  local before = order.is_rebasing > 0 and '(' .. turn_text(REBASE) or '+inf'
  return redis.call('ZRANGEBYSCORE', order.zset, at, before, 'WITHSCORES', 'LIMIT', skipped, count)
end

local function keys_in(entries)
  local keys = {}
  for i = 1, #entries, 2 do
    keys[#keys + 1] = entries[i]
  end
  return keys
end

-- Counts newcomers, and reads those that may be served out of order among the next `count`.
local function read_newcomers(fair, order, count)
  local all, newcomers = redis.call('ZCARD', order.zset), redis.call('ZCOUNT', order.zset, '-inf', '(0')
  order.in_a_row = math.min(MOST_IN_A_ROW, math.ceil((newcomers + 1) / math.max(1, all - newcomers)))
  order.others, order.others_at, order.others_at_once = {}, 1, math.ceil(count / (order.in_a_row + 1))
  order.latest, order.latest_at, order.is_crowd = {}, 1, newcomers > CROWD
  if order.is_crowd and (count > 1 or order.is_last_next == 1) then
    local some = math.ceil(count / 2)
    order.latest =
      redis.call('ZRANGE', order.zset, '(0', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, some, 'WITHSCORES')
    read_keys(fair, keys_in(order.latest))
  end
end

-- Reads from the front again.
local function read_order(fair, order, wanted)
  write_turns(fair, order)
  local count = math.max(1, math.min(wanted, MOST_SERVED))
  order.entries, order.at = read_turns(order, '-inf', 0, count), 1
  order.last = tonumber(order.entries[#order.entries])
  order.is_all = #order.entries < 2 * count
  order.start = order.start or order.clock
  order.again, order.first, order.passed, order.passed_count = {}, 1, {}, 0
  if order.entries[2] and tonumber(order.entries[2]) < 0 then
    read_newcomers(fair, order, count)
  end
  if fair.is_limited then
    read_keys(fair, keys_in(order.entries))
  end
end

-- The first key that is no newcomer, and its turn; nil if there is none.
local function first_of_others(fair, order)
  if order.others_at > #order.others then
    order.others, order.others_at = read_turns(order, '0', order.passed_count, order.others_at_once), 1
    read_keys(fair, keys_in(order.others))
  end
  local key, at = order.others[order.others_at], tonumber(order.others[order.others_at + 1])
  if not key or order.turns[key] then
    return nil
  end
  order.others_at, order.passed_count, order.passed[key] = order.others_at + 2, order.passed_count + 1, true
  return key, at
end

-- The newcomer that came last, and its turn; nil if all that were read had theirs.
local function last_newcomer(order)
  local key, at = order.latest[order.latest_at], tonumber(order.latest[order.latest_at + 1])
  if not key or order.turns[key] then
    return nil
  end
  order.latest_at, order.passed[key] = order.latest_at + 2, true
  return key, at
end

-- The key whose turn it is, and when its turn began; nil if there is none. The third value tells that it is
-- out of order.
local function next_key(fair, order, wanted)
  while true do
    if order.at > #order.entries and order.again[order.first] == nil and not order.is_all then
      read_order(fair, order, wanted)
    end
    local key, at = order.entries[order.at], tonumber(order.entries[order.at + 1])
    local again = order.again[order.first]
    if again and (not key or again.at < at) then
      order.first = order.first + 1
      return again.key, again.at
    elseif not key then
      return nil
    end
    if at < 0 and order.since >= order.in_a_row then
      local other, its_turn = first_of_others(fair, order)
      if other then
        return other, its_turn, true
      end
      -- There is nobody to starve.
      order.since = 0
    end
    if at < 0 and order.is_crowd and order.is_last_next == 1 then
      order.is_last_next = 0
      local last, its_turn = last_newcomer(order)
      if last then
        return last, its_turn
      end
    end
    order.at = order.at + 2
    if not order.passed[key] then
      if at < 0 and order.is_crowd then
        order.is_last_next = 1
      end
      return key, at
    end
  end
end

-- Of the keys that were served, only those that have another turn before what is not read yet are kept in
-- order.
local function come_again(order, key, at)
  if not order.is_all and at > order.last then
    return
  end
  local low, high = order.first, #order.again + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if order.again[middle].at > at then
      high = middle
    else
      low = middle + 1
    end
  end
  table.insert(order.again, low, { key = key, at = at })
end

-- What the member of a message with weight 1 has in its usual place: this is found faster than by a pattern.
local WEIGHT_1, WEIGHT_FROM, WEIGHT_TO = '"redisdelay-key": "1 ', 35, 55

local function round_of(payload)
  if string.sub(payload, WEIGHT_FROM, WEIGHT_TO) == WEIGHT_1 then
    return ROUND
  end
  return math.floor(ROUND / usable_weight(tonumber((key_member(payload, 1)))) + 0.5)
end

-- Gives a key that was served its next turn.
local function note_served(fair, order, key, at, is_passed, payload)
  local round = round_of(payload)
  if at < 0 then
    order.since = order.since + 1
    at, round = order.start, math.floor(round * ((fair.seed + fair.served) * 0.6180339887 % 1))
  else
    order.since = 0
    if not is_passed and at > order.clock then
      order.clock = at
    end
  end
  at = at + math.max(1, round)
  order.turns[key] = at
  count_out(order, 1)
  fair.served, fair.work = fair.served + 1, fair.work + (fair.is_limited and OF_LIMITED or 1)
  fair.latest = key
  come_again(order, key, at)
end

-- Takes a key that is at a limit out of the turns. If it has messages, it waits until it is not any more.
local function stop_key(fair, order, key, at)
  order.gone[#order.gone + 1] = key
  order.turns[key], order.at_limit[key] = nil, at
  fair.work = fair.work + LIMITED
end

-- The next message of an order, at most `wanted` will be asked for; nil if none may be taken.
local function next_in_turn(fair, order, wanted)
  while order.n > 0 and fair.work < MOST_SERVED and fair.looked_at < MOST_LOOKED_AT do
    local key, at, is_passed = next_key(fair, order, wanted)
    if not key then
      return nil
    end
    fair.looked_at = fair.looked_at + 1
    if fair.is_limited and not order.at_limit[key] and is_at_limit(fair, key) then
      stop_key(fair, order, key, at)
    elseif not order.at_limit[key] then
      -- Another program may have put something else there.
      local payload = redis.pcall('RPOP', order.lists .. key)
      if type(payload) == 'string' then
        note_served(fair, order, key, at, is_passed, payload)
        return payload
      end
      order.gone[#order.gone + 1], order.turns[key] = key, nil
    end
  end
end

-- Moves turns back, before their numbers are too great for a whole number of Lua.
local function rebase(fair, order)
  if order.is_rebasing == 0 and order.clock <= REBASE then
    return
  elseif order.is_rebasing == 0 then
    order.is_rebasing, order.clock = 1, order.clock - REBASE
  end
  work_when_full(fair.base .. 'control')
  local late = turn_text(REBASE)
  local some = redis.call('ZRANGEBYSCORE', order.zset, late, '+inf', 'WITHSCORES', 'LIMIT', 0, MOST_REBASED)
  order.is_rebasing = #some > 0 and 1 or 0
  for i = 1, #some, 2 do
    -- Also removed, so that a full Redis allows it.
    order.gone[#order.gone + 1], order.turns[some[i]] = some[i], tonumber(some[i + 1]) - REBASE
  end
  write_turns(fair, order)
end

-- Nothing is written to it.
local NOTHING = {}

local EMPTY =
  { n = 0, clock = 0, since = 0, is_rebasing = 0, arrivals = 0, is_last_next = 0, is_uncounted = 0 }

local function open_order(fair, step, fields)
  local found = EMPTY
  if fields['n:' .. step] then
    found = {}
    for _, name in ipairs(STEP_FIELDS) do
      found[name] = tonumber(fields[name .. ':' .. step]) or 0
    end
  end
  return {
    step = step,
    zset = fair.base .. 'turns:' .. step,
    lists = key_list(fair.base, step, ''),
    found = found,
    n = found.is_uncounted == 1 and math.max(1, found.n) or found.n,
    is_uncounted = found.is_uncounted,
    clock = found.clock,
    since = found.since,
    is_rebasing = found.is_rebasing,
    arrivals = found.arrivals,
    is_last_next = found.is_last_next,
    entries = NOTHING,
    at = 1,
    again = NOTHING,
    first = 1,
    turns = {},
    gone = {},
    at_limit = {},
  }
end

-- The index of the order of step 0, or of the first if there is none.
local function index_of_0(orders)
  for index, order in ipairs(orders) do
    if order.step == '0' then
      return index
    end
  end
  return 1
end

-- Reads the orders of a queue for the `steps`, and, as `unused`, those of other steps: these are no longer
-- used, and messages are left in them.
local function open_orders(fair, steps)
  fair.orders, fair.unused, fair.served, fair.work, fair.looked_at = {}, {}, 0, 0, 0
  -- All of them: there are no more than seven for each step.
  local found, fields = redis.call('HSCAN', fair.base .. 'fair', '0', 'COUNT', '200')[2], {}
  for i = 1, #found, 2 do
    fields[found[i]] = found[i + 1]
  end
  for index, step in ipairs(steps) do
    fair.orders[index] = open_order(fair, step, fields)
    fields['n:' .. step] = nil
  end
  for name in pairs(fields) do
    local step = string.match(name, '^n:(%d+)$')
    if step then
      table.insert(fair.unused, open_order(fair, step, fields))
    end
  end
end

-- To be called before something is written (expect.lua). If there are turns, and no message is said to be
-- sorted, the count was lost.
local function expect_turns(fair, order)
  expect_right('LPUSH', order.lists, '')
  expect_right('ZADD', order.zset, '0', '')
  expect_right('HSET', fair.base .. 'fair', '', '')
  if redis.call('ZCARD', order.zset) > 0 and order.n == 0 then
    lose_count_of(order)
  end
end

-- Writes an order. If it has no messages, nothing is left of it.
local function close_order(fair, order)
  if order.n <= 0 then
    if order.found ~= EMPTY or order.is_used then
      forget_step(fair.base, order.step)
    end
    return
  end
  write_turns(fair, order)
  local changes = {}
  for _, name in ipairs(STEP_FIELDS) do
    if order[name] ~= order.found[name] then
      changes[#changes + 1] = name .. ':' .. order.step
      changes[#changes + 1] = turn_text(order[name])
    end
  end
  if #changes > 0 then
    redis.call('HSET', fair.base .. 'fair', unpack(changes))
  end
end
