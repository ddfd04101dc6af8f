-- Lists again what no key lists any more, because one was lost: consumers that hold messages, and keys of a
-- fair queue that have messages and no turn (include/fair.lua). A search of the database has found them by
-- their names (broker/unlisted.py). If the queue is not said to be fair, that was lost, too: its messages are
-- moved back.
--
-- KEYS[1]  consumers
-- KEYS[2]  wake zset
-- KEYS[3]  limits (hash `control`)
-- ARGV[1]  "1": only looks
-- ARGV[2+] names of keys of the queue, without what the keys of a queue begin with: those of unacked hashes,
--          and of lists and turns of a fair queue
--
-- Returns  how many consumers were not listed, and how many messages they hold; how many lists had no turn,
--          and how many messages they have
--
-- Keeps: no message is moved. A consumer that is alive renews its lease; nobody takes its messages before
-- that had to be done.

-- include: base
-- include: wake
-- include: full
-- include: holders
-- include: fair

local base, only_looks = base_of(KEYS[1]), ARGV[1] == '1'
local consumers, keys_of = {}, {}
for i = 2, #ARGV do
  local consumer = string.match(ARGV[i], '^unacked:(.*)$')
  local with_turns = string.match(ARGV[i], '^turns:(%d+)$')
  local step, key = string.match(ARGV[i], '^(%d*):(.*)$')
  if consumer then
    consumers[#consumers + 1] = consumer
  elseif with_turns then
    keys_of[with_turns] = keys_of[with_turns] or {}
  elseif step then
    -- See key_list().
    step = step == '' and '0' or step
    keys_of[step] = keys_of[step] or {}
    table.insert(keys_of[step], key)
  end
end

local function is_open(step)
  return redis.call('HEXISTS', base .. 'fair', 'n:' .. step) == 1
end

-- Those of the keys that have messages in a step, and no turn; and how many messages. A turn is of no use if
-- nothing is said to be sorted by key.
local function without_turn(step, keys)
  local found, messages = {}, 0
  for _, key in ipairs(is_open(step) and keys_without_turn(base, step, keys) or keys) do
    -- Another program may have put something else there.
    local length = redis.pcall('LLEN', key_list(base, step, key))
    if type(length) == 'number' and length > 0 then
      found[#found + 1], messages = key, messages + length
    end
  end
  return found, messages
end

-- Whether a step has turns, and nothing is said to be sorted by key.
local function has_lost_count(step)
  return not is_open(step) and redis.call('EXISTS', base .. 'turns:' .. step) == 1
end

local lists, sorted_by_key, is_changed = 0, 0, false
for step, keys in pairs(keys_of) do
  local some, messages = without_turn(step, keys)
  lists, sorted_by_key = lists + #some, sorted_by_key + messages
  if not only_looks and (#some > 0 or has_lost_count(step)) then
    work_when_full(KEYS[3])
    lose_count(base, step)
    is_changed = true
    if #some > 0 then
      give_turns(base, step, some, clock_of(base, step), 0)
    end
  end
end
local unlisted, unacked = list_holders(base, consumers, only_looks)
if not only_looks and not fair_state(base) and redis.call('EXISTS', base .. 'fair') == 1 then
  work_when_full(KEYS[3])
  redis.call('HSET', KEYS[3], 'fair', 'off')
  is_changed = true
end
if is_changed then
  wake(KEYS[2])
end
return { #unlisted, unacked, lists, sorted_by_key }
