-- Gives back what a consumer holds in a queue, if its lease has ended or it is known to be gone, and
-- forgets the consumer once it holds nothing. Bounded: call it until it is done.
--
-- KEYS[1]  consumers
-- KEYS[2]  unacked of the consumer
-- KEYS[3]  ready list of step 0
-- KEYS[4]  wake zset
-- KEYS[5]  dead
-- ARGV[1]  consumer
-- ARGV[2]  "1" if its lease does not count, because it is known to be gone, or gives back its own messages
-- ARGV[3]  "returned" or "lost" (include/give_back.lua)
-- ARGV[4]  how many bytes at most
-- ARGV[5]  separator between a queue's name and a priority step
-- ARGV[6]  how many deliveries a message may have (0: any number)
-- ARGV[7]  how many dead letters the queue keeps
-- ARGV[8]  failed deliveries after which a lost message goes to the tail (0: never)
-- ARGV[9]  x-expires of the queue, ms (0: none)
-- ARGV[10+] delivery tags; the message that is to be taken last comes first
--
-- Returns  how many of the tags were looked at, how many of these were held, how many of those are now dead
--          letters, how many older dead letters were dropped for them, 1 when nothing is left to do, the
--          briefs of some that went back although their consumer did not give them back, and of some that
--          are dead letters now (include/brief.lua)
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
-- include: give_back
-- include: history

local FIRST_TAG = 10

local lease_end_ms = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0)
if ARGV[2] ~= '1' and lease_end_ms > clock_ms() then
  return { 0, 0, 0, 0, 1, {}, {} }
end

local byte_limit = tonumber(ARGV[4])
local queue = {
  ready = KEYS[3],
  separator = ARGV[5],
  dead = KEYS[5],
  dead_limit = tonumber(ARGV[7]),
  delivery_limit = tonumber(ARGV[6]),
  suspect_from = tonumber(ARGV[8]),
  expires_ms = tonumber(ARGV[9]),
}
local looked_at, held, dead, dropped, bytes = 0, 0, 0, 0, 0
local lost, buried = {}, {}
for i = FIRST_TAG, #ARGV do
  if bytes >= byte_limit then
    break
  end
  looked_at = looked_at + 1
  local stored = redis.call('HGET', KEYS[2], ARGV[i])
  if stored then
    held, bytes = held + 1, bytes + #stored
    local is_dead, gone = give_back(KEYS[2], ARGV[i], stored, ARGV[3], queue)
    dead, dropped = dead + is_dead, dropped + gone
    if is_dead == 1 then
      add_brief(buried, stored)
    elseif ARGV[3] == 'lost' then
      add_brief(lost, stored)
    end
  end
end
note_given_back(KEYS[4], ARGV[3], held, dead)
if held > dead then
  wake(KEYS[4])
  expire(queue.expires_ms, { KEYS[4] })
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return { looked_at, held, dead, dropped, 1, lost, buried }
end
return { looked_at, held, dead, dropped, 0, lost, buried }
