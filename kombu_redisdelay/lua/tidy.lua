-- Forgets the lost consumers of a queue that hold nothing. If the queue has nothing in it then,
-- also removes the keys that are left of it. The history stays for a while: a fleet that is scaled to zero at
-- night has one in the morning.
--
-- KEYS[1]  consumers
-- KEYS[2]  wake zset
-- KEYS[3]  duplicates
-- KEYS[4]  unknown
-- KEYS[5]  history
-- KEYS[6]  schedule
-- KEYS[7]  messages
-- KEYS[8]  limits (hash `control`)
-- KEYS[9+] what is kept, such as dead letters and failed tasks; then ready lists of all steps
-- ARGV[1]  beginning of the keys of unacked hashes; the name of the consumer follows
-- ARGV[2]  how many consumers to look at
--
-- Returns  1 if there is neither a message nor a consumer nor a limit, else 0
--
-- Keeps: no message is touched. A consumer that is alive after all is listed again by its next take.

-- include: clock
-- include: history
-- include: leftovers

-- Messages that were ever delivered.
local BRIEFLY_USED = 10

for _, consumer in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', clock_ms(), 'LIMIT', 0, ARGV[2])) do
  if redis.call('EXISTS', ARGV[1] .. consumer) == 0 then
    redis.call('ZREM', KEYS[1], consumer)
  end
end
local base = base_of(KEYS[2])
if redis.call('EXISTS', KEYS[1], unpack(KEYS, 6)) > 0 or has_others(base) then
  return 0
end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
forget_leftovers(base)
-- Less than an hour and a few messages: a queue for replies, and not a fleet that works now and then.
local told = redis.pcall('HMGET', KEYS[5], 'hours', 'delivered')
if not told.err and not told[1] and (tonumber(told[2]) or 0) <= BRIEFLY_USED then
  redis.call('PEXPIRE', KEYS[5], BRIEF_HISTORY_KEPT_MS)
elseif redis.call('PTTL', KEYS[5]) == -1 then
  redis.call('PEXPIRE', KEYS[5], HISTORY_KEPT_MS)
end
return 1
