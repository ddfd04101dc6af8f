-- Acks a message whose task has failed for good, and keeps it among the failed ones of its queue
-- (include/failed.lua).
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  wake zset
-- ARGV     see below, by their names
--
-- Returns  0: it was not unacked, and nothing was done. 1: it is kept. 2: it was acked and is not kept,
--          because the server is full, or another program has written to the keys
--
-- Keeps: a message is in one place, first unacked and then failed. One that is not unacked any more is in
-- another place by now, and is left there: so this may be sent again. A copy that is there is not added
-- again.

-- include: base
-- include: clock
-- include: wake
-- include: stored
-- include: members
-- include: duplicates
-- include: full
-- include: history
-- include: unique_member
-- include: unique
-- include: unique_unacked
-- include: fair
-- include: fair_unacked
-- include: failed

local
  -- Delivery tag, and id of the message.
  tag, id,
  -- "<task> <error>", and what else is noted of the failure, JSON in one line.
  group, details,
  -- "": the message is unacked, and moves. Else it was acked before its task ran, and this is a copy of it,
  -- as it would be in the unacked hash.
  copy,
  -- "1" if the consumers of the queue may hold a limited number of messages: that leaves room for another
  -- one.
  is_limited,
  -- How many are kept, for how long in ms, and of how many bytes together.
  count, age_ms, bytes,
  -- How many of those that are too much are dropped. More are left to the next failure, and to maintenance.
  most_trimmed = unpack(ARGV)

local base, now_us = base_of(KEYS[2]), clock_us()
local now_ms = now_us / 1000

local function keep(stored)
  local keys, name = failed_keys(base), id
  if not are_usable(keys) then
    return REFUSED
  end
  if redis.call('ZSCORE', keys.list, name) then
    local other = redis.call('HGET', keys.heads, name) or ''
    if string.match(other, '^%d+ %d+ %S+ %S+ (%S+) ') == tag then
      return IS_THERE
    end
    name = id .. DUPLICATE .. tag
    if redis.call('ZSCORE', keys.list, name) then
      return IS_THERE
    end
  end
  -- The first write of all: a full server refuses this one, and no later one (include/full.lua).
  if type(redis.pcall('ZADD', keys.list, string.format('%.3f', now_ms), name)) ~= 'number' then
    return REFUSED
  end
  mend_failed(keys, now_ms)
  local failures = string.format('%.0f', deliveries(stored, stored_start(stored)))
  local head = table.concat({ string.format('%.0f', now_us), failures, group, tag, details }, ' ')
  local kept = #stored <= LARGEST_KEPT and stored or ''
  redis.call('HSET', keys.heads, name, head)
  redis.call('HSET', keys.messages, name, kept)
  if name ~= id then
    redis.call('ZADD', keys.duplicates, 0, name)
  end
  if has_counted(keys, now_ms) then
    count_failed(keys, now_ms, head, #kept, 1)
  end
  local limits = { count = tonumber(count), age_ms = tonumber(age_ms), bytes = tonumber(bytes) }
  local _, dropped = trim_failed(keys, limits, now_ms, tonumber(most_trimmed))
  note(KEYS[2], 'failed_dropped', dropped)
  for _, key in pairs(keys) do
    redis.call('PEXPIRE', key, age_ms)
  end
  return KEPT
end

local stored = copy
if copy == '' then
  stored = redis.call('HGET', KEYS[1], tag)
  if not stored then
    return 0
  end
end
local outcome = keep(stored)
if copy == '' then
  redis.call('HDEL', KEYS[1], tag)
  free_key(key_of_unacked(base, KEYS[1], tag, stored, stored_start(stored)), now_ms)
  if counts_keys(base) then
    release_key(base, KEYS[1], tag)
  end
  if is_limited == '1' then
    wake(KEYS[2])
  end
else
  -- It is counted also if it was refused.
  work_when_full(KEYS[1])
end
if outcome ~= IS_THERE then
  note(KEYS[2], 'failed_tasks', 1)
end
return outcome == REFUSED and 2 or 1
