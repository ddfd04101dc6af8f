-- Removes dead letters from their list: for good, or back to the tail of the ready list that they came from,
-- as if they had never been delivered.
--
-- KEYS[1]  dead
-- KEYS[2]  ready list of step 0
-- KEYS[3]  wake zset
-- ARGV[1]  "requeue", or "drop"
-- ARGV[2]  separator between a queue's name and a priority step
-- ARGV[3+] the dead letters as they are in the list, the oldest first
--
-- Returns  for each: 1 if it was there, else 0; or the id of the message that holds its key. Then it is still
--          there
--
-- Keeps: the message is in exactly one place, or dropped.

-- include: dead
-- include: requeue_kept

local base = base_of(KEYS[3])
for i = 3, #ARGV do
  local step, payload = dead_step_and_payload(ARGV[i])
  take_out(base, step, payload, 1, function(when_removed)
    -- From the tail, where the oldest are.
    local was_there = redis.call('LREM', KEYS[1], -1, ARGV[i])
    if was_there == 1 then
      when_removed()
    end
    return was_there
  end)
end
return taken_out()
