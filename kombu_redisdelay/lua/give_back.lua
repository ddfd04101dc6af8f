-- Gives messages that a consumer holds back to their ready lists.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  ready list of step 0
-- KEYS[3]  wake zset
-- KEYS[4]  dead
-- ARGV[1]  separator between a queue's name and a priority step
-- ARGV[2]  "unseen", "returned" or "failed" (include/give_back.lua)
-- ARGV[3]  how many deliveries a message may have (0: any number)
-- ARGV[4]  how many dead letters the queue keeps
-- ARGV[5]  x-expires of the queue, ms (0: none)
-- ARGV[6+] delivery tags; the message that is to be taken last comes first
--
-- Returns  how many were held, how many of these are now dead letters, how many older dead letters were
--          dropped for them, the briefs of some that are dead letters now (include/brief.lua)
--
-- Keeps: a message leaves the unacked hash only into a ready list or into dead. A message that is not held
-- any more is in another place by now, and is left alone.

-- include: expect
-- include: clock
-- include: wake
-- include: expire
-- include: stored
-- include: members
-- include: dead
-- include: brief
-- include: give_back
-- include: history

local how = ARGV[2]
local queue = {
  ready = KEYS[2],
  separator = ARGV[1],
  dead = KEYS[4],
  dead_limit = tonumber(ARGV[4]),
  delivery_limit = tonumber(ARGV[3]),
  suspect_from = 0,
  expires_ms = tonumber(ARGV[5]),
}
local held, dead, dropped, buried = 0, 0, 0, {}
for i = 6, #ARGV do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  if stored then
    held = held + 1
    local is_dead, gone = give_back(KEYS[1], ARGV[i], stored, how, queue)
    dead, dropped = dead + is_dead, dropped + gone
    if is_dead == 1 then
      add_brief(buried, stored)
    end
  end
end
note_given_back(KEYS[3], how, held, dead)
if held > dead then
  wake(KEYS[3])
  expire(queue.expires_ms, { KEYS[3] })
end
return { held, dead, dropped, buried }
