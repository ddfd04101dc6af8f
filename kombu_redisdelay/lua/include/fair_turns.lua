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
-- A `lane` is a step of a queue in a script:
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
--   is_used                whether messages were sorted in

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
-- What other work costs, in messages: to sort one in; to take one of a key that has limits; to let a key have
-- its turn again, or take it out. Some messages are taken all the same.
local SORTED_IN, OF_LIMITED, LIMITED, MOST_OTHER = 0.25, 2, 0.5, 60

-- Notes that it is not known how many messages of a lane are sorted in (fair.lua).
local function lose_count_of(lane)
  lane.is_uncounted, lane.n = 1, math.max(1, lane.n)
end

-- Notes that `count` messages leave a lane.
local function count_out(lane, count)
  lane.n = lane.n - count
  if lane.is_uncounted == 1 then
    lane.n = math.max(1, lane.n)
  end
end

-- Does work of another kind than taking, for which so many messages are taken less.
local function note_work(fair, work)
  fair.work = math.min(MOST_OTHER, fair.work + work)
end

-- Which of the keys that leave because of a limit have messages: these wait, the others are gone.
local function leaving_with_messages(fair, lane)
  local keys, lists = {}, {}
  for key in pairs(lane.at_limit) do
    keys[#keys + 1] = key
    lists[#lists + 1] = key_list(fair.base, lane.step, key)
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

local function write_limited(fair, lane)
  local keys, limited = leaving_with_messages(fair, lane), fair.base .. 'limited'
  if #keys > 0 then
    local found, changes = redis.call('HMGET', limited, unpack(keys)), {}
    for i, key in ipairs(keys) do
      local turn = lane.step .. ' ' .. turn_text(lane.at_limit[key]) .. ' '
      changes[#changes + 1], changes[#changes + 2] = key, (found[i] or '') .. turn
    end
    work_when_full(fair.base .. 'control')
    redis.call('HSET', limited, unpack(changes))
    set_alarms(fair, keys)
  end
  lane.at_limit = {}
end

local function write_turns(fair, lane)
  -- First, so that a full Redis allows the rest (full.lua): it may be all that a take does.
  if #lane.gone > 0 then
    redis.call('ZREM', lane.zset, unpack(lane.gone))
  end
  write_limited(fair, lane)
  local pairs_of = {}
  for key, at in pairs(lane.turns) do
    pairs_of[#pairs_of + 1] = turn_text(at)
    pairs_of[#pairs_of + 1] = key
  end
  if #pairs_of > 0 then
    redis.call('ZADD', lane.zset, unpack(pairs_of))
  end
  lane.turns, lane.gone, lane.has_turns = {}, {}, #pairs_of > 0 or nil
end

-- Up to `count` entries that begin after `at` ("-inf": the first), without the first `skipped` of these.
local function read_turns(lane, at, skipped, count)
  -- What is not rebased yet comes later.
  local before = lane.is_rebasing > 0 and '(' .. turn_text(REBASE) or '+inf'
  return redis.call('ZRANGEBYSCORE', lane.zset, at, before, 'WITHSCORES', 'LIMIT', skipped, count)
end

local function keys_in(entries)
  local keys = {}
  for i = 1, #entries, 2 do
    keys[#keys + 1] = entries[i]
  end
  return keys
end

-- Counts newcomers, and reads those that may be served out of order among the next `count`.
local function read_newcomers(fair, lane, count)
  local all, newcomers = redis.call('ZCARD', lane.zset), redis.call('ZCOUNT', lane.zset, '-inf', '(0')
  lane.in_a_row = math.min(MOST_IN_A_ROW, math.ceil((newcomers + 1) / math.max(1, all - newcomers)))
  lane.others, lane.others_at, lane.others_at_once = {}, 1, math.ceil(count / (lane.in_a_row + 1))
  lane.latest, lane.latest_at, lane.is_crowd = {}, 1, newcomers > CROWD
  if lane.is_crowd and (count > 1 or lane.is_last_next == 1) then
    local some = math.ceil(count / 2)
    lane.latest =
      redis.call('ZRANGE', lane.zset, '(0', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, some, 'WITHSCORES')
    read_keys(fair, keys_in(lane.latest))
  end
end

-- Reads from the front again.
local function read_lane(fair, lane, wanted)
  write_turns(fair, lane)
  local count = math.max(1, math.min(wanted, MOST_SERVED))
  lane.entries, lane.at = read_turns(lane, '-inf', 0, count), 1
  lane.last = tonumber(lane.entries[#lane.entries])
  lane.is_all = #lane.entries < 2 * count
  lane.start = lane.start or lane.clock
  lane.again, lane.first, lane.passed, lane.passed_count = {}, 1, {}, 0
  if lane.entries[2] and tonumber(lane.entries[2]) < 0 then
    read_newcomers(fair, lane, count)
  end
  if fair.is_limited then
    read_keys(fair, keys_in(lane.entries))
  end
end

-- The first key that is no newcomer, and its turn; nil if there is none.
local function first_of_others(fair, lane)
  if lane.others_at > #lane.others then
    lane.others, lane.others_at = read_turns(lane, '0', lane.passed_count, lane.others_at_once), 1
    read_keys(fair, keys_in(lane.others))
  end
  local key, at = lane.others[lane.others_at], tonumber(lane.others[lane.others_at + 1])
  if not key or lane.turns[key] then
    return nil
  end
  lane.others_at, lane.passed_count, lane.passed[key] = lane.others_at + 2, lane.passed_count + 1, true
  return key, at
end

-- The newcomer that came last, and its turn; nil if all that were read had theirs.
local function last_newcomer(lane)
  local key, at = lane.latest[lane.latest_at], tonumber(lane.latest[lane.latest_at + 1])
  if not key or lane.turns[key] then
    return nil
  end
  lane.latest_at, lane.passed[key] = lane.latest_at + 2, true
  return key, at
end

-- The key whose turn it is, and when its turn began; nil if there is none. The third value tells that it is
-- out of order.
local function next_key(fair, lane, wanted)
  while true do
    if lane.at > #lane.entries and lane.again[lane.first] == nil and not lane.is_all then
      read_lane(fair, lane, wanted)
    end
    local key, at, again = lane.entries[lane.at], tonumber(lane.entries[lane.at + 1]), lane.again[lane.first]
    if again and (not key or again.at < at) then
      lane.first = lane.first + 1
      return again.key, again.at
    elseif not key then
      return nil
    end
    if at < 0 and lane.since >= lane.in_a_row then
      local other, its_turn = first_of_others(fair, lane)
      if other then
        return other, its_turn, true
      end
      -- There is nobody to starve.
      lane.since = 0
    end
    if at < 0 and lane.is_crowd and lane.is_last_next == 1 then
      lane.is_last_next = 0
      local last, its_turn = last_newcomer(lane)
      if last then
        return last, its_turn
      end
    end
    lane.at = lane.at + 2
    if not lane.passed[key] then
      if at < 0 and lane.is_crowd then
        lane.is_last_next = 1
      end
      return key, at
    end
  end
end

-- Of the keys that were served, only those that have another turn before what is not read yet are kept in
-- order.
local function come_again(lane, key, at)
  if not lane.is_all and at > lane.last then
    return
  end
  local low, high = lane.first, #lane.again + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if lane.again[middle].at > at then
      high = middle
    else
      low = middle + 1
    end
  end
  table.insert(lane.again, low, { key = key, at = at })
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
local function note_served(fair, lane, key, at, is_passed, payload)
  local round = round_of(payload)
  if at < 0 then
    lane.since = lane.since + 1
    at, round = lane.start, math.floor(round * ((fair.seed + fair.served) * 0.6180339887 % 1))
  else
    lane.since = 0
    if not is_passed and at > lane.clock then
      lane.clock = at
    end
  end
  at = at + math.max(1, round)
  lane.turns[key] = at
  count_out(lane, 1)
  fair.served, fair.work = fair.served + 1, fair.work + (fair.is_limited and OF_LIMITED or 1)
  fair.latest = key
  come_again(lane, key, at)
end

-- Takes a key that is at a limit out of the turns. If it has messages, it waits until it is not any more.
local function stop_key(fair, lane, key, at)
  lane.gone[#lane.gone + 1] = key
  lane.turns[key], lane.at_limit[key] = nil, at
  fair.work = fair.work + LIMITED
end

-- The next message of a lane, at most `wanted` will be asked for; nil if none may be taken.
local function next_in_turn(fair, lane, wanted)
  while lane.n > 0 and fair.work < MOST_SERVED and fair.looked_at < MOST_LOOKED_AT do
    local key, at, is_passed = next_key(fair, lane, wanted)
    if not key then
      return nil
    end
    fair.looked_at = fair.looked_at + 1
    if fair.is_limited and not lane.at_limit[key] and is_at_limit(fair, key) then
      stop_key(fair, lane, key, at)
    elseif not lane.at_limit[key] then
      -- Another program may have put something else there.
      local payload = redis.pcall('RPOP', lane.lists .. key)
      if type(payload) == 'string' then
        note_served(fair, lane, key, at, is_passed, payload)
        return payload
      end
      lane.gone[#lane.gone + 1], lane.turns[key] = key, nil
    end
  end
end

-- Moves turns back, before their numbers are too great for a whole number of Lua.
local function rebase(fair, lane)
  if lane.is_rebasing == 0 and lane.clock <= REBASE then
    return
  elseif lane.is_rebasing == 0 then
    lane.is_rebasing, lane.clock = 1, lane.clock - REBASE
  end
  work_when_full(fair.base .. 'control')
  local late = turn_text(REBASE)
  local some = redis.call('ZRANGEBYSCORE', lane.zset, late, '+inf', 'WITHSCORES', 'LIMIT', 0, MOST_REBASED)
  lane.is_rebasing = #some > 0 and 1 or 0
  for i = 1, #some, 2 do
    -- Also removed, so that a full Redis allows it.
    lane.gone[#lane.gone + 1], lane.turns[some[i]] = some[i], tonumber(some[i + 1]) - REBASE
  end
  write_turns(fair, lane)
end

-- Nothing is written to it.
local NOTHING = {}

local EMPTY =
  { n = 0, clock = 0, since = 0, is_rebasing = 0, arrivals = 0, is_last_next = 0, is_uncounted = 0 }

local function open_lane(fair, step, fields)
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

-- The index of the lane of step 0, or of the first if there is none.
local function index_of_0(lanes)
  for index, lane in ipairs(lanes) do
    if lane.step == '0' then
      return index
    end
  end
  return 1
end

-- Reads the lanes of a queue for the `steps`, and, as `strays`, those of other steps: these are no longer
-- used, and messages are left in them.
local function open_lanes(fair, steps)
  fair.lanes, fair.strays, fair.served, fair.work, fair.looked_at = {}, {}, 0, 0, 0
  -- All of them: there are no more than seven for each step.
  local found, fields = redis.call('HSCAN', fair.base .. 'fair', '0', 'COUNT', '200')[2], {}
  for i = 1, #found, 2 do
    fields[found[i]] = found[i + 1]
  end
  for index, step in ipairs(steps) do
    fair.lanes[index] = open_lane(fair, step, fields)
    fields['n:' .. step] = nil
  end
  for name in pairs(fields) do
    local step = string.match(name, '^n:(%d+)$')
    if step then
      table.insert(fair.strays, open_lane(fair, step, fields))
    end
  end
end

-- To be called before something is written (expect.lua). If there are turns, and nothing is said to be sorted
-- in, the count was lost.
local function expect_turns(fair, lane)
  expect_right('LPUSH', lane.lists, '')
  expect_right('ZADD', lane.zset, '0', '')
  expect_right('HSET', fair.base .. 'fair', '', '')
  if redis.call('ZCARD', lane.zset) > 0 and lane.n == 0 then
    lose_count_of(lane)
  end
end

-- Writes a lane. If it has no messages, nothing is left of it.
local function close_lane(fair, lane)
  if lane.n <= 0 then
    if lane.found ~= EMPTY or lane.is_used then
      forget_step(fair.base, lane.step)
    end
    return
  end
  write_turns(fair, lane)
  local changes = {}
  for _, name in ipairs(STEP_FIELDS) do
    if lane[name] ~= lane.found[name] then
      changes[#changes + 1] = name .. ':' .. lane.step
      changes[#changes + 1] = turn_text(lane[name])
    end
  end
  if #changes > 0 then
    redis.call('HSET', fair.base .. 'fair', unpack(changes))
  end
end
