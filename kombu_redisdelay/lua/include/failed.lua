-- What a queue keeps of tasks that have failed for good (broker/failed.py). `base` is what its keys begin
-- with.
--   failed             zset: name -> when it failed, ms. The name is the id; of a further one with this id,
--                      the id, \31 and the delivery tag
--   failed:heads       hash: name -> "<when, us> <failures> <task> <error> <tag> <JSON>", one line
--   failed:messages    hash: name -> the message as in the unacked hash; '' if it is too large to be kept
--   failed:groups      hash: "<task> <error>" -> "<how many> <first, ms> <last, ms>"; those that have
--                      returned are counted apart, under "<task> <error> <what was lost>"; '' -> bytes of
--                      all; since -> while they are counted anew: only those are counted that failed at this
--                      time, ms, or later
--   failed:duplicates  zset: names of those whose id another one had before (duplicates.lua)
--   failed:returned    zset: names of those that are known to have returned -> the same time as in `failed`.
--                      An older release knows nothing of it, and leaves names there
-- A head is small, a message may be large: so some things are told without reading messages.
-- They have a time to live, so Redis may evict one of them, and leave the others.

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
    returned = base .. 'failed:returned',
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
  redis.call('ZCARD', keys.returned)
end

local function are_usable(keys)
  return (pcall(expect_failed, keys))
end

-- What was lost of one that is known to have returned; nil of another one.
local function returned_in(head)
  return string.match(head, '^%d+ %d+ %S+ %S+ %S+ {"returned": "(%l+)"')
end

local function group_in(head)
  local group, lost = string.match(head, '^%d+ %d+ (%S+ %S+) '), returned_in(head)
  return lost and group .. ' ' .. lost or group
end

-- Counts one that is added (`by` is 1) or removed (-1) in its group, and its bytes.
local function count_failed(keys, at_ms, head, message_bytes, by)
  -- Another program may have written no number.
  redis.pcall('HINCRBY', keys.groups, '', string.format('%.0f', by * (#head + message_bytes)))
  local group = group_in(head)
  if not group then
    return
  end
  local count, first, last = string.match(redis.call('HGET', keys.groups, group) or '', '^(%d+) (%d+) (%d+)$')
  count, first, last = (tonumber(count) or 0) + by, tonumber(first) or at_ms, tonumber(last) or at_ms
  if count <= 0 then
    redis.call('HDEL', keys.groups, group)
    return
  end
  if by > 0 then
    first, last = math.min(first, at_ms), math.max(last, at_ms)
  end
  redis.call('HSET', keys.groups, group, string.format('%.0f %.0f %.0f', count, first, last))
end

-- Returns the bytes of all that are counted; nil if no number of ours is there.
local function bytes_of_all(keys)
  local bytes = string.match(redis.call('HGET', keys.groups, '') or '', '^%d+$')
  return bytes and #bytes <= 15 and tonumber(bytes) or nil
end

local function counted_since_ms(keys)
  -- As above.
  return tonumber(string.match(redis.call('HGET', keys.groups, 'since') or '', '^%d+%.?%d*$') or nil)
end

local function has_counted(keys, at_ms)
  return redis.call('HEXISTS', keys.groups, '') == 1 and at_ms >= (counted_since_ms(keys) or -math.huge)
end

-- For an empty list, or one that has got its first name just now: whatever the other keys have is not found
-- any more.
local function unlink_rest(keys)
  redis.call('UNLINK', keys.heads, keys.messages, keys.groups, keys.duplicates, keys.returned)
end

-- Begins to count anew: count_anew() adds those that failed before `since_ms`.
local function count_from(keys, since_ms)
  redis.call('UNLINK', keys.groups)
  redis.call('HSET', keys.groups, '', 0, 'since', string.format('%.3f', since_ms))
end

-- For a list that has got a name just now, with nothing else of it. If some of the keys have gone without the
-- others, begins to count anew, with this one.
local function mend_failed(keys, now_ms)
  if redis.call('ZCARD', keys.list) == 1 then
    unlink_rest(keys)
    redis.call('HSET', keys.groups, '', 0)
  elseif redis.call('EXISTS', keys.heads, keys.messages) < 2 or not bytes_of_all(keys) then
    count_from(keys, now_ms)
  end
end

-- Counts the latest ones that are not counted yet: `most` at most. So those go first that are not counted, if
-- all are too large together. Returns how many it counted.
local function count_anew(keys, most)
  local since_ms = counted_since_ms(keys)
  if not since_ms then
    return 0
  end
  -- First, because a full server does not refuse it (full.lua).
  redis.call('HDEL', keys.groups, 'since')
  local since = string.format('(%.17g', since_ms)
  local found =
    redis.call('ZRANGE', keys.list, since, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, most, 'WITHSCORES')
  for i = 1, #found, 2 do
    local head = redis.call('HGET', keys.heads, found[i]) or ''
    count_failed(keys, tonumber(found[i + 1]), head, redis.call('HSTRLEN', keys.messages, found[i]), 1)
  end
  if #found == 2 * most then
    redis.call('HSET', keys.groups, 'since', found[#found])
  end
  return #found / 2
end

-- Returns 1 if it was there, else 0. It removes first, because a full server does not refuse that (full.lua).
-- Calls `when_removed`, if there is one, before anything else can fail.
local function remove_failed(keys, name, when_removed)
  local at_ms = tonumber(redis.call('ZSCORE', keys.list, name) or nil)
  local head = redis.call('HGET', keys.heads, name) or ''
  local message_bytes = redis.call('HSTRLEN', keys.messages, name)
  local was_there = redis.call('ZREM', keys.list, name)
  if was_there == 1 and when_removed then
    when_removed()
  end
  redis.call('HDEL', keys.heads, name)
  redis.call('HDEL', keys.messages, name)
  redis.call('ZREM', keys.duplicates, name)
  redis.call('ZREM', keys.returned, name)
  if at_ms and has_counted(keys, at_ms) then
    count_failed(keys, at_ms, head, message_bytes, -1)
  end
  return was_there
end

-- Takes out of those that have returned the names that are not there any more, or have failed since: an older
-- release has removed or requeued them. It has counted them in other groups, so all are counted anew then.
-- Looks at some names, from `cursor` on. Returns where to go on, '0' at the end.
local function forget_returned(keys, cursor, most, now_ms)
  local next_cursor, found = unpack(redis.call('ZSCAN', keys.returned, cursor, 'COUNT', most))
  local has_forgotten = false
  for i = 1, #found, 2 do
    local at_ms = redis.call('ZSCORE', keys.list, found[i])
    if not at_ms or tonumber(at_ms) ~= tonumber(found[i + 1]) then
      redis.call('ZREM', keys.returned, found[i])
      has_forgotten = true
    end
  end
  if has_forgotten then
    -- None has failed at a later time.
    count_from(keys, now_ms + 0.001)
  end
  return next_cursor
end

-- Removes the oldest ones as long as they are too many, too old or too large together: `most` at most.
-- `limits` has `count`, `age_ms` and `bytes`. Returns how many were removed, and how many of these were not
-- too old.
local function trim_failed(keys, limits, now_ms, most)
  local trimmed, dropped = 0, 0
  while trimmed < most do
    local oldest, since_ms = unpack(redis.call('ZRANGE', keys.list, 0, 0, 'WITHSCORES'))
    local is_old = oldest and tonumber(since_ms) < now_ms - limits.age_ms
    local is_within = not oldest
      or redis.call('ZCARD', keys.list) <= limits.count
        and not is_old
        and (bytes_of_all(keys) or 0) <= limits.bytes
    if is_within then
      break
    end
    remove_failed(keys, oldest)
    trimmed, dropped = trimmed + 1, dropped + (is_old and 0 or 1)
  end
  return trimmed, dropped
end
