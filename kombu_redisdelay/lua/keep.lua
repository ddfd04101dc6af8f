-- A message that is over leaves its consumer, and is kept (include/archive.lua): a task that has failed for
-- good, or could not be ended though it has returned, or a dead letter.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  wake zset
-- KEYS[3]  index of the state: failed, or dead:index
-- ARGV     see below, by their names
--
-- Returns  0: it was not unacked, and nothing was done. -1: it was acked and is not kept, because the server
--          is full, or another program has written to the keys; never for a dead letter. n: it is kept, and
--          n - 1 older ones were dropped because they were too many
--
-- Keeps: a message is in one place, first unacked and then here. One that is not unacked any more is in
-- another place by now, and is left there: so this may be sent again. A copy of a failed task that is there
-- is not added again. A dead letter is kept also by a server that is full, and stays unacked if another
-- program has written to the keys.

-- include: archive_keep
-- include: history
-- include: leave
-- include: wake

local
  -- Delivery tag, and id of the message.
  tag, id,
  -- "<task> <error>", or the kind of the reason of a dead letter; and what else is noted, JSON in one line.
  group, details,
  -- "": the message is unacked, and moves. Else it was acked before its task ran, or is consumed without
  -- acks, and this is a copy of it, as it would be in the unacked hash.
  copy,
  -- 1 if this delivery counts as failed, too.
  failed_now,
  -- "1" if the consumers of the queue may hold a limited number of messages: that leaves room for another
  -- one.
  is_limited,
  -- How many are kept, for how long in ms, and of how many bytes together. "": any number.
  count, age_ms, bytes = unpack(ARGV)

-- A larger message of a failed task is kept without its text: to move it would take too long, and the limit
-- of bytes would leave no room for others.
local LARGEST_KEPT = 1024 * 1024

local base = base_of(KEYS[2])
local is_failed = KEYS[3] == base .. 'failed'
local queue = { base = base, unacked = KEYS[1] }
read_features(queue)
local message = copy == '' and unacked_message(queue, tag) or copy ~= '' and copied(queue, copy)
if not message then
  return 0
end

-- What was lost of a task that is known to have returned.
local stored, now_us, lost = message.stored, clock_us(), string.match(details, '^{"returned": "(%l+)"')
local over = {
  at_us = now_us,
  id = id,
  tag = tag,
  failures = deliveries(stored, message.start) + tonumber(failed_now),
  details = details,
  lost = lost,
  stored = stored,
}

local function leaves()
  leave(message)
  is_over(message, now_us / 1000)
  if is_limited == '1' then
    wake(KEYS[2])
  end
end

if not is_failed then
  -- include: dead_letter
  local archive = archive_of_dead(KEYS[3])
  leaves()
  over.kind = group
  note(KEYS[2], 'dead', 1)
  return 1 + add_dead_letter(archive, over, count)
end

over.group, over.is_copy = group, copy ~= ''
over.stored = #stored <= LARGEST_KEPT and stored or ''
local is_usable, archive = pcall(open_archive, KEYS[3])
local outcome = is_usable and keep(archive, over) or REFUSED
leaves()
if outcome ~= IS_THERE then
  -- It is counted also if it was refused.
  note(KEYS[2], lost and 'returned' or 'failed_tasks', 1)
  note(KEYS[2], 'continuations', lost == 'continuation' and 1 or 0)
end
if outcome ~= KEPT then
  return outcome == REFUSED and -1 or 1
end
local dropped = keep_within(archive, limits_of(count, age_ms, bytes), now_us / 1000)
note(KEYS[2], 'failed_dropped', dropped)
for name, key in pairs(archive.keys) do
  -- Of the groups, it is not known how many there are.
  if archive[name] ~= 0 then
    redis.call('PEXPIRE', key, age_ms)
  end
end
return 1 + dropped
