-- Removes from an archive (archive.lua), and makes its keys again where Redis has evicted one without the
-- others, or somebody has deleted it.

-- include: archive
-- include: expire

-- If there is no name in the index, nor with the heads and the messages, the other keys go.
local function unlink_rest(archive)
  local keys = archive.keys
  if archive.index + archive.heads + archive.messages == 0 then
    redis.call('UNLINK', keys.groups, keys.duplicates, keys.returned)
    archive.duplicates, archive.returned = 0, 0
  end
end

-- Begins to count anew: if there are some, count_anew() counts those that came before `since_ms`.
local function count_from(archive, since_ms)
  local groups = archive.keys.groups
  unlink_rest(archive)
  redis.call('UNLINK', groups)
  redis.call('HSET', groups, '', 0)
  if archive.index + archive.heads + archive.messages > 0 then
    redis.call('HSET', groups, 'since', string.format('%.3f', since_ms))
    archive.since_ms = since_ms
  end
  archive.bytes = 0
  for _, list in ipairs({ 'duplicates', 'returned' }) do
    if archive[list] > 0 then
      redis.call('HSET', groups, list, 1)
    end
  end
end

-- Whether what is counted or listed was lost, or is that of heads that were lost.
local function is_damaged(archive)
  local fields = 1 + (archive.since_ms and 1 or 0)
  for _, list in ipairs({ 'duplicates', 'returned' }) do
    local is_noted = redis.call('HEXISTS', archive.keys.groups, list)
    if is_noted == 1 and archive[list] == 0 then
      return true
    end
    fields = fields + is_noted
  end
  return not archive.bytes or archive.heads == 0 and redis.call('HLEN', archive.keys.groups) > fields
end

-- Counts one as count_kept() does, by its head.
local function count_head(archive, at_ms, head, message_bytes, by)
  local group = string.match(head, '^%d+ %d+ (%S+ %S+) ')
  count_kept(archive, at_ms, group, returned_in(head), #head + message_bytes, by)
end

-- Counts the latest ones that are not counted yet, and lists them where they have to be besides: `most` at
-- most. So those go first that are not counted, if all are too large together. Returns how many it counted.
local function count_anew(archive, most)
  if not archive.since_ms then
    return 0
  end
  local keys, since = archive.keys, string.format('(%.17g', archive.since_ms)
  -- First, because a full server does not refuse it (full.lua).
  redis.call('HDEL', keys.groups, 'since')
  archive.since_ms = nil
  local found =
    redis.call('ZRANGE', keys.index, since, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, most, 'WITHSCORES')
  for i = 1, #found, 2 do
    local name, at_ms = found[i], tonumber(found[i + 1])
    local head = redis.call('HGET', keys.heads, name) or ''
    list_besides(archive, name, at_ms, returned_in(head))
    count_head(archive, at_ms, head, redis.call('HSTRLEN', keys.messages, name), 1)
  end
  if #found == 2 * most then
    redis.call('HSET', keys.groups, 'since', found[#found])
    archive.since_ms = tonumber(found[#found])
  end
  expire(redis.call('PTTL', keys.index), { keys.groups, keys.duplicates, keys.returned })
  return #found / 2
end

-- Returns 1 if it was there, else 0. It removes first, because a full server does not refuse that (full.lua).
-- Calls `when_removed`, if there is one, before anything else can fail.
local function remove_kept(archive, name, when_removed)
  local keys = archive.keys
  local at_ms = tonumber(redis.call('ZSCORE', keys.index, name) or nil)
  local head = redis.call('HGET', keys.heads, name) or ''
  local message_bytes = redis.call('HSTRLEN', keys.messages, name)
  local was_there = redis.call('ZREM', keys.index, name)
  if was_there == 1 and when_removed then
    when_removed()
  end
  archive.index = archive.index - was_there
  archive.heads = archive.heads - redis.call('HDEL', keys.heads, name)
  archive.messages = archive.messages - redis.call('HDEL', keys.messages, name)
  listed(archive, 'duplicates', -redis.call('ZREM', keys.duplicates, name))
  listed(archive, 'returned', -redis.call('ZREM', keys.returned, name))
  if at_ms then
    count_head(archive, at_ms, head, message_bytes, -1)
  end
  return was_there
end

-- Takes out of those that have returned the names that are not there any more, or have failed since: an older
-- release has removed or requeued them. It has counted them in other groups, so all are counted anew then.
-- Looks at some names, from `cursor` on. Returns where to go on, '0' at the end.
local function forget_returned(archive, cursor, most, now_ms)
  local keys = archive.keys
  local next_cursor, found = unpack(redis.call('ZSCAN', keys.returned, cursor, 'COUNT', most))
  local has_forgotten = false
  for i = 1, #found, 2 do
    local at_ms = redis.call('ZSCORE', keys.index, found[i])
    if not at_ms or tonumber(at_ms) ~= tonumber(found[i + 1]) then
      listed(archive, 'returned', -redis.call('ZREM', keys.returned, found[i]))
      has_forgotten = true
    end
  end
  if has_forgotten then
    -- None has failed at a later time.
    count_from(archive, now_ms + 0.001)
  end
  return next_cursor
end

-- Where names are that the index has lost: with the 'heads', or with the 'messages' if their heads were lost,
-- too; nil if it has lost none.
local function unlisted_in(archive)
  return archive.heads > archive.index and 'heads' or archive.messages > archive.index and 'messages' or nil
end

-- Lists these names. A message does not tell when it came: it comes now. Looks at some, from `cursor` on.
-- Returns where to go on, '0' at the end.
local function list_again(archive, where, cursor, most, now_us)
  local keys, has_times = archive.keys, where == 'heads'
  -- A head may be large, and a message larger.
  local some = math.ceil(most / (has_times and 5 or 50))
  local next_cursor, found = unpack(redis.call('HSCAN', keys[where], cursor, 'COUNT', some))
  -- First, because a full server does not refuse it (full.lua).
  count_from(archive, now_us / 1000 + 0.001)
  for i = 1, #found, 2 do
    local told_us = has_times and tonumber(string.match(found[i + 1], '^%d+'))
    -- No two at the same time, for count_anew().
    local at_us = math.min(now_us, told_us or now_us - archive.messages + archive.index)
    local at = string.format('%.3f', at_us / 1000)
    archive.index = archive.index + redis.call('ZADD', keys.index, 'NX', at, found[i])
  end
  expire(redis.call('PTTL', keys[where]), { keys.index })
  return next_cursor
end

-- Removes the oldest ones as long as they are too many, too old or too large together: `most` at most.
-- Returns how many were removed, and how many of these were not too old.
local function trim_archive(archive, limits, now_ms, most)
  local trimmed, dropped = 0, 0
  while trimmed < most do
    local oldest, is_old = first_to_go(archive, limits, now_ms)
    if not oldest then
      break
    end
    remove_kept(archive, oldest)
    trimmed, dropped = trimmed + 1, dropped + (is_old and 0 or 1)
  end
  return trimmed, dropped
end
