-- Gives messages that a consumer holds back: to their ready lists, to the schedule, or to the dead letters.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  ready list of step 0
-- KEYS[3]  wake zset
-- KEYS[4]  dead
-- KEYS[5]  schedule
-- KEYS[6]  messages
-- KEYS[7]  duplicates
-- ARGV[1]  separator between a queue's name and a priority step
-- ARGV[2]  "unseen", "returned" or "failed" (include/give_back.lua)
-- ARGV[3]  how many failures a message may have (0: any number)
-- ARGV[4]  how many dead letters the queue keeps
-- ARGV[5]  x-expires of the queue, ms (0: none)
-- ARGV[6]  how long a message waits after its second failure, ms; each time twice as long
-- ARGV[7]  how long these messages wait, ms ("": as ARGV[6] says)
-- ARGV[8+] delivery tag and id, for each message; the message that is to be taken last comes first. If an id
--          is "", it is not known
--
-- Returns  how many were held, how many of these are now dead letters, how many older dead letters were
--          dropped for them, the briefs of some that are dead letters now (include/brief.lua); pairs of a
--          delivery tag and a message, as it is stored, for those that must wait and have no id. They are
--          still held: call again with their ids
--
-- Keeps: a message leaves the unacked hash only into a ready list, into the schedule or into dead. A message
-- that is not held any more is in another place by now, and is left alone.

-- include: expect
-- include: clock
-- include: wake
-- include: expire
-- include: stored
-- include: members
-- include: dead
-- include: brief
-- include: duplicates
-- include: schedule
-- include: history
-- include: give_back

local FIRST_TAG = 8

local queue = {
  unacked = KEYS[1],
  ready = KEYS[2],
  wake = KEYS[3],
  dead = KEYS[4],
  schedule = KEYS[5],
  messages = KEYS[6],
  duplicates = KEYS[7],
  separator = ARGV[1],
  delivery_limit = tonumber(ARGV[3]),
  dead_limit = tonumber(ARGV[4]),
  expires_ms = tonumber(ARGV[5]),
  retry_wait_ms = tonumber(ARGV[6]),
  delay_ms = tonumber(ARGV[7]),
  suspect_from = 0,
}
local done = nothing_given_back()
for i = FIRST_TAG, #ARGV, 2 do
  give_back(ARGV[i], ARGV[i + 1], ARGV[2], queue, done)
end
tell_of_given_back(ARGV[2], queue, done)
return { done.held, done.dead, done.dropped, done.buried, done.unnamed }
