-- What a queue keeps of messages that are over (broker/archive.py): tasks that have failed for good, and dead
-- letters. Each of these two states, "failed" and "dead", has the same keys:
--   index       zset: name -> when it came there, ms. The name is the id; of a further one with this id, the
--               id, \31 and the delivery tag
--   heads       hash: name -> "<when, us> <failures> <task> <error> <tag> <JSON>", one line. The error of a
--               dead letter is the kind of its reason. The tag is "-" if it was not kept as a copy
--   messages    hash: name -> the message as in the unacked hash; '' if it is too large to be kept
--   groups      hash: "<task> <error>" -> "<how many> <first, ms> <last, ms>"; those that have returned are
--               counted apart, under "<task> <error> <what was lost>"; '' -> bytes of all; since -> while
--               they are counted anew: only those are counted that came at this time, ms, or later;
--               duplicates, returned -> 1 while there have to be some of these
--   duplicates  zset: names of those whose id another one had before (duplicates.lua)
--   returned    zset: names of those that are known to have returned -> the same time as in the index. No
--               dead letter has. An older release knows nothing of it, and leaves names there
-- A head is small, a message may be large: so some things are told without reading messages. Redis may evict
-- one of the keys, and leave the others: then what else there is of each name is shown, and from index and
-- heads, archive_upkeep.lua makes again what they tell.
--
-- Redis makes the functions of a script anew at each call. So this has only what is needed for each message;
-- archive_keep.lua adds one.

-- include: clock
-- include: duplicates

-- The archive of a state, from the key of its index: its `keys`, and under the same names how much they have,
-- which the functions below keep right. Raises an error if a key has another type: another program may have
-- put something else there.
local function open_archive(index)
  local base, state = string.match(index, '^(.*}:)(%l+)')
  local begin = base .. state .. ':'
  local keys = {
    index = index,
    heads = begin .. 'heads',
    messages = begin .. 'messages',
    groups = begin .. 'groups',
    duplicates = begin .. 'duplicates',
    returned = begin .. 'returned',
  }
  local counted, since = unpack(redis.call('HMGET', keys.groups, '', 'since'))
  -- Another program may have written no number.
  local bytes = string.match(counted or '', '^%d+$')
  return {
    keys = keys,
    index = redis.call('ZCARD', index),
    heads = redis.call('HLEN', keys.heads),
    messages = redis.call('HLEN', keys.messages),
    duplicates = redis.call('ZCARD', keys.duplicates),
    returned = redis.call('ZCARD', keys.returned),
    -- Of all that are counted; nil if nothing is.
    bytes = bytes and #bytes <= 15 and tonumber(bytes) or nil,
    since_ms = since and tonumber(string.match(since, '^%d+%.?%d*$') or nil),
  }
end

-- To be called when the `duplicates` or the `returned` ones have got so many, or have lost as many.
local function listed(archive, list, by)
  local before = archive[list]
  archive[list] = before + by
  if before == 0 and by > 0 then
    redis.call('HSET', archive.keys.groups, list, 1)
  elseif by < 0 and archive[list] == 0 then
    redis.call('HDEL', archive.keys.groups, list)
  end
end

-- What was lost of one that is known to have returned, by its head; nil of another one.
local function returned_in(head)
  return string.match(head, '^%d+ %d+ %S+ %S+ %S+ {"returned": "(%l+)"')
end

-- Lists one that is in the index also where it has to be besides. `lost` is what returned_in() tells.
local function list_besides(archive, name, at_ms, lost)
  local keys = archive.keys
  if string.find(name, DUPLICATE, 1, true) then
    listed(archive, 'duplicates', redis.call('ZADD', keys.duplicates, 0, name))
  end
  if lost then
    listed(archive, 'returned', redis.call('ZADD', keys.returned, string.format('%.3f', at_ms), name))
  elseif archive.returned > 0 then
    -- An older release may have left the name there.
    listed(archive, 'returned', -redis.call('ZREM', keys.returned, name))
  end
end

-- Counts one that is added (`by` is 1) or removed (-1), and its bytes. `group` has its task and error; nil if
-- they are not known. `lost` is as above.
local function count_kept(archive, at_ms, group, lost, bytes, by)
  if not archive.bytes or at_ms < (archive.since_ms or 0) then
    return
  end
  local groups = archive.keys.groups
  archive.bytes = math.max(0, archive.bytes + by * bytes)
  local changes = { '', string.format('%.0f', archive.bytes) }
  if group then
    group = lost and group .. ' ' .. lost or group
    local count, first, last = string.match(redis.call('HGET', groups, group) or '', '^(%d+) (%d+) (%d+)$')
    count, first, last = (tonumber(count) or 0) + by, tonumber(first) or at_ms, tonumber(last) or at_ms
    if count <= 0 then
      redis.call('HDEL', groups, group)
    else
      if by > 0 then
        first, last = math.min(first, at_ms), math.max(last, at_ms)
      end
      changes[3], changes[4] = group, string.format('%.0f %.0f %.0f', count, first, last)
    end
  end
  redis.call('HSET', groups, unpack(changes))
end

-- How much is kept: how many, for how long, and how many bytes together. '' is no limit.
local function limits_of(count, age_ms, bytes)
  local any = math.huge
  return { count = tonumber(count) or any, age_ms = tonumber(age_ms) or any, bytes = tonumber(bytes) or any }
end

-- The oldest one, if it has to go; and whether it is too old. Else there are not too many, and they are not
-- too large together.
local function first_to_go(archive, limits, now_ms)
  local are_too_many = archive.index > limits.count or (archive.bytes or 0) > limits.bytes
  if not are_too_many and limits.age_ms == math.huge then
    return nil
  end
  local oldest, since_ms = unpack(redis.call('ZRANGE', archive.keys.index, 0, 0, 'WITHSCORES'))
  local is_old = oldest and tonumber(since_ms) < now_ms - limits.age_ms
  return (is_old or are_too_many) and oldest or nil, is_old
end
