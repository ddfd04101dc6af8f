-- Frees keys whose message is gone: a program that does not know keys has taken, removed or purged it. Looks
-- at some keys.
--
-- KEYS[1]  wake zset
-- KEYS[2]  ready list of step 0
-- ARGV[1]  separator between a queue's name and a priority step
-- ARGV[2]  how many keys to look at, of those that wait and of those that run
-- ARGV[3]  where to begin with those that wait: "0", or what the last call returned
-- ARGV[4]  the same for those that run
-- ARGV[5]  the same for what is blocked
--
-- Returns  where to begin the next time with those that wait, with those that run, and with what is blocked
--
-- Keeps: no message is moved. A message that waits for a free key is due now. A consumer that holds a message
-- with a key is listed, so that others see whether it is lost.

-- include: base
-- include: clock
-- include: unique
-- include: holders
-- include: fair

local BLOCKED_AT_ONCE, BYTES_AT_ONCE = 20, 256 * 1024
-- Lists of a fair queue that are looked at.
local lists_left, bytes_left = 300, BYTES_AT_ONCE

local base = base_of(KEYS[1])
local now_ms = clock_us() / 1000
local function list_of(step)
  return ready_key(KEYS[2], ARGV[1], step)
end

-- When the oldest of the messages became ready that are the next ones of their keys in a step of a fair
-- queue; 0 if that cannot be told.
local function oldest_of_keys_ms(step)
  local zset, limited = base .. 'turns:' .. step, base .. 'limited'
  lists_left = lists_left - redis.call('ZCARD', zset) - redis.call('HLEN', limited)
  if lists_left < 0 then
    return 0
  end
  local keys, oldest_ms = redis.call('ZRANGE', zset, 0, -1), now_ms
  for _, key in ipairs(redis.call('HKEYS', limited)) do
    keys[#keys + 1] = key
  end
  for _, key in ipairs(keys) do
    -- An error if another program has put something else there.
    local head = redis.pcall('LINDEX', key_list(base, step, key), '-1')
    if type(head) == 'string' then
      oldest_ms = math.min(oldest_ms, tonumber(members_of(head, 1).due) or 0)
      bytes_left = bytes_left - #head
    end
    if bytes_left < 0 then
      return 0
    end
  end
  return oldest_ms
end

-- Whether each key of a fair queue is past a message: then it was taken, or the list that it was in was lost.
local oldest_ms = {}
local function has_passed(entry)
  if now_ms <= entry.since_ms + PASSED_MS then
    return false
  end
  oldest_ms[entry.step] = oldest_ms[entry.step] or oldest_of_keys_ms(entry.step)
  return oldest_ms[entry.step] > entry.since_ms + PASSED_MS
end

-- Those that hold messages with keys.
local holders = {}

local function check_key(record)
  prune(record, now_ms, list_of, has_passed)
  unblock(record, now_ms)
  write_record(record)
end

-- `text` is what the hash `unique` has for the key.
local function check_waiting(key, text)
  local record = record_of(base, key, text, '')
  if record.next or record.current and record.current.state ~= 'r' then
    -- It may be blocked by the one that runs.
    record = read_record(base, key)
  end
  check_key(record)
end

-- The same for the hash `running`. Most of what runs is there, and there is nothing to do.
local function check_running(key, text)
  local running = record_of(base, key, '', text).running
  if not running or not is_unacked(base, running) then
    check_key(read_record(base, key))
  elseif holders[#holders] ~= running.consumer then
    holders[#holders + 1] = running.consumer
  end
end

local function check(hash, cursor, check_one)
  local scan = redis.pcall('HSCAN', base .. hash, cursor, 'COUNT', ARGV[2])
  if scan.err then
    -- What another program has written there is left alone.
    return '0'
  end
  for i = 1, #scan[2], 2 do
    check_one(scan[2][i], scan[2][i + 1])
  end
  return scan[1]
end

-- Another program may have deleted the hashes. A blocked message in none of them would be blocked for ever.
local function check_blocked(first)
  local schedule = base .. 'schedule'
  local blocked = redis.pcall('ZRANGEBYSCORE', schedule, '+inf', '+inf', 'LIMIT', first, BLOCKED_AT_ONCE)
  local bytes = 0
  for i, member in ipairs(blocked) do
    local stored = redis.pcall('HGET', base .. 'messages', member)
    stored = type(stored) == 'string' and stored or ''
    local mode, _, key = unique_of(stored, stored_start(stored))
    local record = read_record(base, key or '', mode)
    local is_current = record.current and record.current.member == member
    if not is_current and not (record.next and record.next.member == member) then
      redis.call('ZADD', schedule, now_ms, member)
      wake(KEYS[1])
    end
    bytes = bytes + #stored
    if bytes > BYTES_AT_ONCE then
      return tostring(first + i)
    end
  end
  return tostring(#blocked == BLOCKED_AT_ONCE and first + BLOCKED_AT_ONCE or 0)
end

local waiting, running = check('unique', ARGV[3], check_waiting), check('running', ARGV[4], check_running)
list_holders(base, holders)
return { waiting, running, check_blocked(tonumber(ARGV[5])) }
