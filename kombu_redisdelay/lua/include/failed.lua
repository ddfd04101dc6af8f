-- What a queue keeps of tasks that have failed for good (broker/failed.py). `base` is what its keys begin
-- with.
--   failed             zset: name -> when it failed, ms. The name is the id; of a further one with this id,
--                      the id, \31 and the delivery tag
--   failed:heads       hash: name -> "<when, us> <failures> <task> <error> <tag> <JSON>", one line
--   failed:messages    hash: name -> the message as in the unacked hash; '' if it is too large to be kept
--   failed:groups      hash: "<task> <error>" -> "<how many> <first, ms> <last, ms>"; '' -> bytes of all
--   failed:duplicates  zset: names of those whose id another one had before (duplicates.lua)
-- A head is small, a message may be large: so some things are told without reading messages.

-- A larger message is kept without its text: to move it would take too long, and the limit of bytes would
-- leave no room for others.
local LARGEST_KEPT = 1024 * 1024
local KEPT, IS_THERE, REFUSED = 'kept', 'is there', 'refused'

local function failed_keys(base)
  return {
    list = base .. 'failed',
    heads = base .. 'failed:heads',
    messages = base .. 'failed:messages',
    groups = base .. 'failed:groups',
    duplicates = base .. 'failed:duplicates',
  }
end

-- Raises an error if a key has another type: another program may have put something else there.
local function expect_failed(keys)
  redis.call('ZCARD', keys.list)
  redis.call('HLEN', keys.heads)
  redis.call('HLEN', keys.messages)
  redis.call('HLEN', keys.groups)
  redis.call('ZCARD', keys.duplicates)
end

local function are_usable(keys)
  return (pcall(expect_failed, keys))
end

local function count_failed(keys, group, by, now_ms)
  local count, first, last = string.match(redis.call('HGET', keys.groups, group) or '', '^(%d+) (%d+) (%d+)$')
  count = (tonumber(count) or 0) + by
  if count <= 0 then
    redis.call('HDEL', keys.groups, group)
    return
  end
  first, last = tonumber(first) or now_ms, by > 0 and now_ms or tonumber(last) or now_ms
  redis.call('HSET', keys.groups, group, string.format('%.0f %.0f %.0f', count, first, last))
end

local function count_bytes(keys, bytes)
  -- Another program may have written no number.
  redis.pcall('HINCRBY', keys.groups, '', string.format('%.0f', bytes))
end

local function bytes_of_all(keys)
  -- As above.
  return tonumber(string.match(redis.call('HGET', keys.groups, '') or '', '^%d+$') or 0)
end

-- Returns 1 if it was there, else 0.
local function remove_failed(keys, name, now_ms)
  local head = redis.call('HGET', keys.heads, name)
  local was_there = redis.call('ZREM', keys.list, name)
  if head then
    count_bytes(keys, -#head - redis.call('HSTRLEN', keys.messages, name))
    redis.call('HDEL', keys.heads, name)
    local group = string.match(head, '^%d+ %d+ (%S+ %S+) ')
    if group then
      count_failed(keys, group, -1, now_ms)
    end
  end
  redis.call('HDEL', keys.messages, name)
  redis.call('ZREM', keys.duplicates, name)
  return was_there
end

-- Removes the oldest ones as long as they are too many, too old or too large together: `most` at most.
-- `limits` has `count`, `age_ms` and `bytes`. Returns how many were removed.
local function trim_failed(keys, limits, now_ms, most)
  local trimmed = 0
  while trimmed < most do
    local oldest, since_ms = unpack(redis.call('ZRANGE', keys.list, 0, 0, 'WITHSCORES'))
    local is_within = not oldest
      or redis.call('ZCARD', keys.list) <= limits.count
        and tonumber(since_ms) >= now_ms - limits.age_ms
        and bytes_of_all(keys) <= limits.bytes
    if is_within then
      break
    end
    remove_failed(keys, oldest, now_ms)
    trimmed = trimmed + 1
  end
  return trimmed
end
