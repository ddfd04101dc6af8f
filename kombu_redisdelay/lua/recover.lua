-- Gives back what a consumer holds in a queue, if its lease has ended or it is known to be gone, and
-- forgets the consumer once it holds nothing. Bounded: call it until it is done.
--
-- KEYS[1]  consumers
-- KEYS[2]  unacked of the consumer
-- KEYS[3]  ready list of step 0
-- KEYS[4]  wake zset
-- KEYS[5]  dead
-- KEYS[6]  schedule
-- KEYS[7]  messages
-- KEYS[8]  duplicates
-- ARGV[1]  consumer
-- ARGV[2]  "1" if its lease does not count, because it is known to be gone, or gives back its own messages
-- ARGV[3]  "returned" or "lost" (include/give_back.lua)
-- ARGV[4]  how many bytes at most
-- ARGV[5]  separator between a queue's name and a priority step
-- ARGV[6]  how many failures a message may have (0: any number)
-- ARGV[7]  how many dead letters the queue keeps
-- ARGV[8]  how many times a message may be lost before it is held alone (0: each time is a failure)
-- ARGV[9]  x-expires of the queue, ms (0: none)
-- ARGV[10] how long a message waits after its second failure, ms; each time twice as long
-- ARGV[11+] delivery tag and id, for each message; the message that is to be taken last comes first. If an id
--          is "", it is not known
--
-- Returns  how many of the messages were looked at, how many of these were held, how many of those are now
--          dead letters, how many older dead letters were dropped for them, 1 when nothing is left to do, the
--          briefs of some that went back although their consumer did not give them back, and of some that
--          are dead letters now (include/brief.lua); pairs of a delivery tag and a message, as it is stored,
--          for those that must wait and have no id. They are still held: call again with their ids
--
-- Keeps: the message that was taken first is at the head again, and is taken first again. A consumer
-- whose lease was renewed in the meantime keeps what it holds.

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

local FIRST_TAG = 11

local lease_end_ms = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0)
if ARGV[2] ~= '1' and lease_end_ms > clock_ms() then
  return { 0, 0, 0, 0, 1, {}, {}, {} }
end

local byte_limit = tonumber(ARGV[4])
local queue = {
  unacked = KEYS[2],
  ready = KEYS[3],
  wake = KEYS[4],
  dead = KEYS[5],
  schedule = KEYS[6],
  messages = KEYS[7],
  duplicates = KEYS[8],
  separator = ARGV[5],
  delivery_limit = tonumber(ARGV[6]),
  dead_limit = tonumber(ARGV[7]),
  suspect_from = tonumber(ARGV[8]),
  expires_ms = tonumber(ARGV[9]),
  retry_wait_ms = tonumber(ARGV[10]),
}
local looked_at, bytes, lost, done = 0, 0, {}, nothing_given_back()
for i = FIRST_TAG, #ARGV, 2 do
  if bytes >= byte_limit then
    break
  end
  looked_at = looked_at + 1
  local stored, where = give_back(ARGV[i], ARGV[i + 1], ARGV[3], queue, done)
  bytes = bytes + (stored and #stored or 0)
  if where and where ~= 'dead' and ARGV[3] == 'lost' then
    add_brief(lost, stored)
  end
end
tell_of_given_back(ARGV[3], queue, done)
local is_done = 0
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('ZREM', KEYS[1], ARGV[1])
  is_done = 1
end
return { looked_at, done.held, done.dead, done.dropped, is_done, lost, done.buried, done.unnamed }
