-- Gives messages that a consumer holds back: to their ready lists, to the schedule, or to the dead letters.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  ready list of step 0
-- KEYS[3]  wake zset
-- KEYS[4]  dead
-- KEYS[5]  schedule
-- KEYS[6]  messages
-- KEYS[7]  duplicates
-- ARGV     see below, by their names
--
-- Returns  how many were unacked, how many of these are now dead letters, how many older dead letters were
--          dropped for them, the briefs of some that are dead letters now (include/brief.lua); pairs of a
--          delivery tag and a message, as it is stored, for those that must wait and have no id. They are
--          still unacked: call again with their ids
--
-- Keeps: a message leaves the unacked hash only into a ready list, into the schedule or into dead. A message
-- that is not unacked any more is in another place by now, and is left there.

-- include: give_back

local
  -- Between a queue's name and a priority step.
  separator,
  -- "unseen", "returned" or "failed" (include/give_back.lua).
  how,
  -- How many failures a message may have (0: any number).
  delivery_limit,
  -- How many dead letters the queue keeps.
  dead_limit,
  -- x-expires of the queue, ms (0: none).
  expires_ms,
  -- How long a message waits after its second failure, ms; each time twice as long.
  retry_wait_ms,
  -- How long these messages wait, ms ("": as retry_wait_ms says).
  delay_ms,
  -- How many messages. They are the last of ARGV: delivery tag and id of each. The message that is to be
  -- taken last comes first. If an id is "", it is not known.
  count = unpack(ARGV)

local queue = {
  base = base_of(KEYS[3]),
  unacked = KEYS[1],
  ready = KEYS[2],
  wake = KEYS[3],
  dead = KEYS[4],
  schedule = KEYS[5],
  messages = KEYS[6],
  duplicates = KEYS[7],
  separator = separator,
  delivery_limit = tonumber(delivery_limit),
  dead_limit = tonumber(dead_limit),
  expires_ms = tonumber(expires_ms),
  retry_wait_ms = tonumber(retry_wait_ms),
  delay_ms = tonumber(delay_ms),
  isolated_from = 0,
}
read_fairness(queue)
local done = nothing_given_back()
for i = #ARGV - 2 * count + 1, #ARGV, 2 do
  give_back(ARGV[i], ARGV[i + 1], how, queue, done)
end
tell_of_given_back(how, queue, done)
return { done.settled, done.dead, done.dropped, done.briefs, done.unnamed }
