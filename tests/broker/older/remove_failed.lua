-- Removes failed tasks from where they are kept: for good, or back to the tail of the ready list that they
-- came from, as if they had never been delivered.
--
-- KEYS[1]  failed
-- KEYS[2]  ready list of step 0
-- KEYS[3]  wake zset
-- ARGV[1]  "requeue", or "drop"
-- ARGV[2]  separator between a queue's name and a priority step
-- ARGV[3+] for each: its name, its head as it was read, and the message to requeue, with its priority step
--
-- Returns  for each: 1 if it was there as it was read, else 0; or the id of the message that holds its key.
--          Then it is still there
--
-- Keeps: the message is in exactly one place, or dropped.

-- include: base
-- include: expect
-- include: clock
-- include: wake
-- include: stored
-- include: members
-- include: history
-- include: unique_member
-- include: unique
-- include: failed
-- include: requeue_kept

local base = base_of(KEYS[3])
local keys = failed_keys(base)
-- Before anything is removed: what is taken out of one of them and not out of all could not be found again.
expect_failed(keys)
for i = 3, #ARGV, 3 do
  local name, head, stored = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if (redis.call('HGET', keys.heads, name) or '') == head then
    take_out(base, stored_step(stored), stored, stored_start(stored), function()
      return remove_failed(keys, name)
    end)
  else
    was_not_there()
  end
end
return taken_out()
