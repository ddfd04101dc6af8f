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

-- include: archive_upkeep
-- include: arrive
-- include: history

-- Before anything is removed: what is taken out of one of them and not out of all could not be found again.
local archive, now_ms = open_archive(KEYS[1]), clock_us() / 1000
local only_looks, is_requeued = ARGV[1] == 'foresee', ARGV[1] ~= 'drop'
local queue =
  { base = base_of(KEYS[3]), ready = KEYS[2], wake = KEYS[3], separator = ARGV[2], expires_ms = 0 }
-- Key -> id of the message that would take it.
local takes = {}

-- Returns as the script does. A large message is not cut out: each copy of 1 MiB takes a millisecond.
local function requeue(name, stored)
  local message = other_message(queue, stored)
  local key, holder_id = key_and_holder(message, now_ms)
  holder_id = holder_id or key and takes[key]
  if holder_id then
    return holder_id
  elseif only_looks then
    if key then
      takes[key] = message.id
    end
    return 1
  end
  expect_ready(message, 'tail')
  local ours = { deliveries = false, lost = false, due = now_ms, unknown = false }
  local payload = with_members(stored, message.start, ours)
  return remove_kept(archive, name, function()
    becomes_ready(message, 'tail', payload, now_ms)
  end)
end

local reply, requeued = {}, 0
for i = 3, #ARGV, 3 do
  local name, head, stored = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local done = 0
  if (redis.call('HGET', archive.keys.heads, name) or '') == head then
    done = is_requeued and requeue(name, stored) or remove_kept(archive, name)
  end
  requeued = requeued + (is_requeued and done == 1 and 1 or 0)
  reply[#reply + 1] = done
end
if only_looks then
  return reply
end
unlink_rest(archive)
if requeued > 0 then
  note(KEYS[3], 'other', requeued)
  wake(KEYS[3])
end
return reply
