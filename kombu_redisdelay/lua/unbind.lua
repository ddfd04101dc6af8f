-- Takes bindings of a queue out of an exchange, and notes that, so that no process says them again.
--
-- KEYS[1]  bindings of the exchange
-- KEYS[2]  those of them that do not expire
-- KEYS[3]  hash: what was unbound of this queue
-- KEYS[4]  exchanges to which queues of other names are bound (none: the queue has the name of the exchange)
-- ARGV[1]  what KEYS[3] gets of this binding ("": all bindings, because the queue was deleted)
-- ARGV[2]  exchange
-- ARGV[3]  how long that is heeded, ms
-- ARGV[4+] the bindings
--
-- Returns  how many of them were there
--
-- Keeps: what is noted is gone. It works in a full Redis.

-- A full Redis refuses no script that removes first (include/full.lua).
redis.call('HDEL', KEYS[3], ARGV[1])
local removed = 0
if #ARGV > 3 then
  removed = redis.call('SREM', KEYS[1], unpack(ARGV, 4))
  redis.call('SREM', KEYS[2], unpack(ARGV, 4))
end
if KEYS[4] and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SREM', KEYS[4], ARGV[2])
end
if ARGV[1] == '' then
  -- Also what was declared again since it was deleted before.
  redis.call('DEL', KEYS[3])
end
redis.call('HSET', KEYS[3], ARGV[1], '-')
redis.call('PEXPIRE', KEYS[3], ARGV[3])
return removed
