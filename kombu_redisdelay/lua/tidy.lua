-- Forgets the lost consumers of a queue that hold nothing. If the queue has nothing in it then,
-- also removes the keys that are left of it. The history stays for a while: a fleet that is scaled to zero at
-- night has one in the morning.
--
-- KEYS[1]  consumers
-- KEYS[2]  history
-- KEYS[3+] keys that a queue has only if anything is in it; then those that go with the queue
-- ARGV[1]  beginning of the keys of unacked hashes; the name of the consumer follows
-- ARGV[2]  how many consumers to look at
-- ARGV[3]  how many keys a queue has only if anything is in it
--
-- Returns  1 if there is neither a message nor a consumer nor a limit, else 0
--
-- Keeps: no message is touched. A consumer that is alive after all is listed again by its next take.

-- include: clock
-- include: history

-- Messages that were ever delivered.
local BRIEFLY_USED = 10

for _, consumer in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', clock_ms(), 'LIMIT', 0, ARGV[2])) do
  if redis.call('EXISTS', ARGV[1] .. consumer) == 0 then
    redis.call('ZREM', KEYS[1], consumer)
  end
end
local last = 2 + tonumber(ARGV[3])
if redis.call('EXISTS', unpack(KEYS, 3, last)) > 0 then
  return 0
end
redis.call('DEL', unpack(KEYS, last + 1))
-- A release before 0.1 had it, too (include/fair_counting.lua).
redis.call('DEL', base_of(KEYS[1]) .. 'earlier')
-- Less than an hour and a few messages: a queue for replies, and not a fleet that works now and then.
local history = redis.pcall('HMGET', KEYS[2], 'hours', 'delivered')
if not history.err and not history[1] and (tonumber(history[2]) or 0) <= BRIEFLY_USED then
  redis.call('PEXPIRE', KEYS[2], BRIEF_HISTORY_KEPT_MS)
elseif redis.call('PTTL', KEYS[2]) == -1 then
  redis.call('PEXPIRE', KEYS[2], HISTORY_KEPT_MS)
end
return 1
