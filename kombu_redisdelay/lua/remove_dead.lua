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
-- Returns  for each: 1 if it was there, else 0
--
-- Keeps: the message is in exactly one place, or dropped.

-- include: expect
-- include: clock
-- include: wake
-- include: stored
-- include: members
-- include: dead
-- include: history

local reply, requeued = {}, 0
for i = 3, #ARGV do
  local step, payload = dead_step_and_payload(ARGV[i])
  local ready
  if ARGV[1] == 'requeue' then
    ready = ready_key(KEYS[2], ARGV[2], step)
    expect_list(ready)
  end
  -- From the tail, where the oldest are.
  reply[#reply + 1] = redis.call('LREM', KEYS[1], -1, ARGV[i])
  if ready and reply[#reply] == 1 then
    redis.call('LPUSH', ready, with_members(payload, 1, { due = clock_ms() }))
    requeued = requeued + 1
  end
end
if requeued > 0 then
  note(KEYS[3], 'other', requeued)
  wake(KEYS[3])
end
return reply
