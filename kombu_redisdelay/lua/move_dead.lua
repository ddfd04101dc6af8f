-- Moves dead letters from the list where an older release keeps them (include/archive.lua has the new place).
--
-- KEYS[1]  dead, the list
-- KEYS[2]  dead:index
-- ARGV     for each, the oldest first: the entry as it is in the list, where its message begins, from 1 on,
--          the priority step, when it came, microseconds since the epoch, how many deliveries have failed,
--          its id, the kind of its reason, and what else is noted, JSON in one line
--
-- Returns  how many were moved: those that are still the oldest ones of the list
--
-- Keeps: a dead letter is in exactly one place. A full server refuses before any was moved.

-- include: dead_letter

local EACH = 8

local archive, moved = archive_of_dead(KEYS[2]), 0
expect_right('RPOP', KEYS[1])
for i = 1, #ARGV, EACH do
  local entry, start, step, at_us, failures, id, kind, details = unpack(ARGV, i, i + EACH - 1)
  if redis.call('LINDEX', KEYS[1], -1) ~= entry then
    break
  end
  local stored = step .. ':' .. string.sub(entry, start)
  local outcome, why = keep(archive, {
    id = id,
    tag = at_us,
    failures = tonumber(failures),
    group = task_in(stored) .. ' ' .. kind,
    details = details,
    stored = stored,
    at_us = tonumber(at_us),
  })
  if outcome == REFUSED then
    return why
  end
  redis.call('RPOP', KEYS[1])
  moved = moved + 1
end
return moved
