-- What a queue keeps of messages that are over (broker/archive.py): tasks that have failed for good, and dead
-- letters. Each of these two states, "failed" and "dead", has the same keys:
--   index       zset: name -> when it came there, ms. The name is the id; of a further one with this id, the
--               id, \31 and the delivery tag
--   heads       hash: name -> "<when, us> <failures> <task> <error> <tag> <JSON>", one line. The error of a
--               dead letter is the kind of its reason
--   messages    hash: name -> the message as in the unacked hash; '' if it is too large to be kept
--   groups      hash: "<task> <error>" -> "<how many> <first, ms> <last, ms>"; those that have returned are
--               counted apart, under "<task> <error> <what was lost>"; '' -> bytes of all; since -> while
--               they are counted anew: only those are counted that came at this time, ms, or later
--   duplicates  zset: names of those whose id another one had before (duplicates.lua)
--   returned    zset: names of those that are known to have returned -> the same time as in the index. No
--               dead letter has. An older release knows nothing of it, and leaves names there
-- A head is small, a message may be large: so some things are told without reading messages. Redis may evict
-- one of the keys, and leave the others.

-- include: brief
-- include: clock
-- include: duplicates
-- include: expect
-- include: members

local KEPT, IS_THERE, REFUSED = 'kept', 'is there', 'refused'

-- The keys of a state, from the one of its index.
local function archive_of(index)
  local base, state = string.match(index, '^(.*}:)(%l+)')
  return {
    index = index,
    heads = base .. state .. ':heads',
    messages = base .. state .. ':messages',
    groups = base .. state .. ':groups',
    duplicates = base .. state .. ':duplicates',
    returned = base .. state .. ':returned',
  }
end

-- Raises an error if a key has another type: another program may have put something else there.
local function expect_archive(keys)
  redis.call('ZCARD', keys.index)
  redis.call('HLEN', keys.heads)
  redis.call('HLEN', keys.messages)
  redis.call('HLEN', keys.groups)
  redis.call('ZCARD', keys.duplicates)
  redis.call('ZCARD', keys.returned)
end

-- To be called before a message leaves its place for this one (expect.lua).
local function expect_to_keep(keys)
  expect_archive(keys)
  expect_right('ZADD', keys.index, '0', '')
  expect_right('HSET', keys.messages, '', '')
end

local function are_usable(keys)
  return (pcall(expect_archive, keys))
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
local function count_kept(keys, at_ms, head, message_bytes, by)
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

-- For an empty index, or one that has got its first name just now: whatever the other keys have is not found
-- any more.
local function unlink_rest(keys)
  redis.call('UNLINK', keys.heads, keys.messages, keys.groups, keys.duplicates, keys.returned)
end

-- Begins to count anew: count_anew() adds those that came before `since_ms`.
local function count_from(keys, since_ms)
  redis.call('UNLINK', keys.groups)
  redis.call('HSET', keys.groups, '', 0, 'since', string.format('%.3f', since_ms))
end

-- For an index that has got a name just now, with nothing else of it. If some of the keys have gone without
-- the others, begins to count anew, with this one.
local function mend_archive(keys, at_ms)
  if redis.call('ZCARD', keys.index) == 1 then
    unlink_rest(keys)
    redis.call('HSET', keys.groups, '', 0)
  elseif redis.call('EXISTS', keys.heads, keys.messages) < 2 or not bytes_of_all(keys) then
    count_from(keys, at_ms)
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
    redis.call('ZRANGE', keys.index, since, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, most, 'WITHSCORES')
  for i = 1, #found, 2 do
    local head = redis.call('HGET', keys.heads, found[i]) or ''
    count_kept(keys, tonumber(found[i + 1]), head, redis.call('HSTRLEN', keys.messages, found[i]), 1)
  end
  if #found == 2 * most then
    redis.call('HSET', keys.groups, 'since', found[#found])
  end
  return #found / 2
end

-- Returns 1 if it was there, else 0. It removes first, because a full server does not refuse that (full.lua).
-- Calls `when_removed`, if there is one, before anything else can fail.
local function remove_kept(keys, name, when_removed)
  local at_ms = tonumber(redis.call('ZSCORE', keys.index, name) or nil)
  local head = redis.call('HGET', keys.heads, name) or ''
  local message_bytes = redis.call('HSTRLEN', keys.messages, name)
  local was_there = redis.call('ZREM', keys.index, name)
  if was_there == 1 and when_removed then
    when_removed()
  end
  redis.call('HDEL', keys.heads, name)
  redis.call('HDEL', keys.messages, name)
  redis.call('ZREM', keys.duplicates, name)
  redis.call('ZREM', keys.returned, name)
  if at_ms and has_counted(keys, at_ms) then
    count_kept(keys, at_ms, head, message_bytes, -1)
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
    local at_ms = redis.call('ZSCORE', keys.index, found[i])
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

-- How much is kept: how many, for how long, and how many bytes together. '' is no limit.
local function limits_of(count, age_ms, bytes)
  local function limit(text)
    return tonumber(text) or math.huge
  end
  return { count = limit(count), age_ms = limit(age_ms), bytes = limit(bytes) }
end

-- Removes the oldest ones as long as they are too many, too old or too large together: `most` at most.
-- Returns how many were removed, and how many of these were not too old.
local function trim_archive(keys, limits, now_ms, most)
  local trimmed, dropped = 0, 0
  while trimmed < most do
    local oldest, since_ms = unpack(redis.call('ZRANGE', keys.index, 0, 0, 'WITHSCORES'))
    local is_old = oldest and tonumber(since_ms) < now_ms - limits.age_ms
    local is_within = not oldest
      or redis.call('ZCARD', keys.index) <= limits.count
        and not is_old
        and (limits.bytes == math.huge or (bytes_of_all(keys) or 0) <= limits.bytes)
    if is_within then
      break
    end
    remove_kept(keys, oldest)
    trimmed, dropped = trimmed + 1, dropped + (is_old and 0 or 1)
  end
  return trimmed, dropped
end

-- The time in microseconds. Several that come in one script have different ones, in their order.
local latest_us = 0

local function next_us()
  latest_us = math.max(clock_us(), latest_us + 1)
  return latest_us
end

-- The name that it gets; nil if it is a copy that is there.
local function name_for(keys, over)
  local id, name = over.id, over.id .. DUPLICATE .. over.tag
  local has_other, is_there = unpack(redis.call('ZMSCORE', keys.index, id, name))
  if over.is_copy then
    local other = has_other and redis.call('HGET', keys.heads, id) or ''
    -- The other one that had the id may have been dropped since.
    if is_there or string.match(other, '^%d+ %d+ %S+ %S+ (%S+) ') == over.tag then
      return nil
    end
  end
  if not has_other then
    return id
  end
  while is_there do
    name = name .. DUPLICATE .. string.format('%.0f', clock_us())
    is_there = redis.call('ZSCORE', keys.index, name)
  end
  return name
end

-- Adds a message. `over` has
--   id, tag         its id, and the tag of its last delivery
--   failures        how many deliveries of it have failed
--   group, details  "<task> <error>", and what else is noted of it, JSON in one line
--   stored          the message as it is kept
--   is_copy         whether it may be there already
--   at_us           when it came; nil: now
-- To be called where a script has written nothing, or has removed something: else a full server would refuse
-- this in between. Returns one of the three words above; and the name, or what the server has said.
local function keep(keys, over)
  local at_us, name = over.at_us or next_us(), name_for(keys, over)
  if not name then
    return IS_THERE
  end
  local at_ms = at_us / 1000
  -- The first write of all: a full server refuses this one, and no later one (full.lua).
  local added = redis.pcall('ZADD', keys.index, string.format('%.3f', at_ms), name)
  if type(added) ~= 'number' then
    return REFUSED, added
  end
  mend_archive(keys, at_ms)
  local numbers = string.format('%.0f %.0f', at_us, over.failures)
  local head = table.concat({ numbers, over.group, over.tag, over.details }, ' ')
  redis.call('HSET', keys.heads, name, head)
  redis.call('HSET', keys.messages, name, over.stored)
  if returned_in(head) then
    redis.call('ZADD', keys.returned, string.format('%.3f', at_ms), name)
  else
    -- An older release may have left the name there.
    redis.call('ZREM', keys.returned, name)
  end
  if name ~= over.id then
    redis.call('ZADD', keys.duplicates, 0, name)
  end
  if has_counted(keys, at_ms) then
    count_kept(keys, at_ms, head, #over.stored, 1)
  end
  return KEPT, name
end

-- Of those that are too many, a script that adds one drops so many. More are left to the next one, and to
-- maintenance.
local MOST_TRIMMED = 100

-- Adds a dead letter, as the publisher wrote it: `over` has also `kind`, that of the reason, and no group.
-- Returns how many older ones were dropped for it, so that no more than `limit` are kept. expect_to_keep()
-- comes before.
local function add_dead_letter(keys, over, limit)
  over.group = task_in(over.stored) .. ' ' .. over.kind
  over.stored = with_members(over.stored, 1, { deliveries = false, lost = false, unknown = false })
  local outcome, why = keep(keys, over)
  if outcome == REFUSED then
    error(why.err)
  end
  local _, dropped = trim_archive(keys, limits_of(limit), 0, MOST_TRIMMED)
  return dropped
end
