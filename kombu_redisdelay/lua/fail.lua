-- Acks a message whose task has failed for good, or could not be ended though it has returned, and keeps it
-- among the failed ones of its queue (include/failed.lua).
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

-- include: clock
-- include: full
-- include: history
-- include: leave
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
  local keys, name, of_its_own = failed_keys(base), id, id .. DUPLICATE .. tag
  if not are_usable(keys) then
    return REFUSED
  end
  local has_other, is_there = unpack(redis.call('ZMSCORE', keys.list, id, of_its_own))
  if is_there then
    -- The other one that had the id may have been dropped since.
    return IS_THERE
  elseif has_other then
    local other = redis.call('HGET', keys.heads, id) or ''
    if string.match(other, '^%d+ %d+ %S+ %S+ (%S+) ') == tag then
      return IS_THERE
    end
    name = of_its_own
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
  if returned_in(head) then
    redis.call('ZADD', keys.returned, string.format('%.3f', now_ms), name)
  else
    -- An older release may have left the name there.
    redis.call('ZREM', keys.returned, name)
  end
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

local queue = { base = base, unacked = KEYS[1], counts_keys = copy == '' and counts_keys(base) }
local message = copy == '' and unacked_message(queue, tag) or copy ~= '' and copied(queue, copy)
if not message then
  return 0
end
local outcome = keep(message.stored)
if copy == '' then
  leave(message)
  is_over(message, now_ms)
  if is_limited == '1' then
    wake(KEYS[2])
  end
else
  -- It is counted also if it was refused.
  work_when_full(KEYS[1])
end
if outcome ~= IS_THERE then
  local lost = string.match(details, '^{"returned": "(%l+)"')
  note(KEYS[2], lost and 'returned' or 'failed_tasks', 1)
  note(KEYS[2], 'continuations', lost == 'continuation' and 1 or 0)
end
return outcome == REFUSED and 2 or 1
