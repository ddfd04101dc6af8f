-- Takes out messages that are over (include/archive.lua): for good, or back to the tails of the ready lists
-- that they came from, as if they had never been delivered.
--
-- KEYS[1]  index of the state: failed, or dead:index
-- KEYS[2]  ready list of step 0
-- KEYS[3]  wake zset
-- ARGV[1]  "requeue"; "drop"; or "foresee": nothing is done, and what "requeue" would return is returned
-- ARGV[2]  separator between a queue's name and a priority step
-- ARGV[3+] for each: its name, its head as it was read, and the message to requeue, with its priority step
--
-- Returns  for each: 1 if it was there as it was read, else 0; or the id of the message that holds its key.
--          Then it is still there
--
-- Keeps: the message is in exactly one place, or dropped.

-- include: archive
-- include: history
-- include: unique

local base, keys = base_of(KEYS[3]), archive_of(KEYS[1])
local only_looks, is_requeued = ARGV[1] == 'foresee', ARGV[1] ~= 'drop'
-- Unique key -> the message that would take it.
local takes = {}

local function ready_list_of(step)
  return ready_key(KEYS[2], ARGV[2], step)
end

-- The record of a message's key, nil if it has none; the id of the message; and the message that holds the
-- key, nil if none does.
local function key_and_holder(stored, start)
  local mode, id, key = unique_of(stored, start)
  if not mode then
    return nil
  end
  local record = read_record(base, key, mode)
  heal(record, clock_ms(), ready_list_of)
  identify(record)
  return record, id, record.running or record.current or record.next or takes[key]
end

-- Returns as the script does. A large message is not cut out: each copy of 1 MiB takes a millisecond.
local function requeue(name, stored)
  local step, start = stored_step(stored), stored_start(stored)
  local ready = ready_list_of(step)
  expect_list(ready, 'LPUSH')
  local record, id, holder = key_and_holder(stored, start)
  if holder then
    return holder.id
  elseif only_looks and record then
    takes[record.key] = { id = id }
  end
  if only_looks then
    return 1
  end
  local ours = { deliveries = false, lost = false, due = clock_ms(), unknown = false }
  local payload = with_members(stored, start, ours)
  local was_there = remove_kept(keys, name, function()
    redis.call('LPUSH', ready, payload)
  end)
  if was_there == 1 and record then
    record.current = entry_at('r', step, clock_ms(), id)
    write_record(record)
  end
  return was_there
end

-- Before anything is removed: what is taken out of one of them and not out of all could not be found again.
expect_archive(keys)
local reply, requeued = {}, 0
for i = 3, #ARGV, 3 do
  local name, head, stored = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local done = 0
  if (redis.call('HGET', keys.heads, name) or '') == head then
    done = is_requeued and requeue(name, stored) or remove_kept(keys, name)
  end
  requeued = requeued + (is_requeued and done == 1 and 1 or 0)
  reply[#reply + 1] = done
end
if only_looks then
  return reply
end
if redis.call('ZCARD', keys.index) == 0 then
  unlink_rest(keys)
end
if requeued > 0 then
  note(KEYS[3], 'other', requeued)
  wake(KEYS[3])
end
return reply
