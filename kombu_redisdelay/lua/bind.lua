-- Binds a queue to an exchange. Who only says again what it has declared before heeds what others have taken
-- back meanwhile.
--
-- KEYS[1]  bindings of the exchange
-- KEYS[2]  those of them that do not expire
-- KEYS[3]  hash: what was unbound of this queue
-- KEYS[4]  exchanges to which queues of other names are bound (none: the queue has the name of the exchange)
-- ARGV[1]  binding
-- ARGV[2]  exchange
-- ARGV[3]  what KEYS[3] has of this binding
-- ARGV[4]  "first", or "again" if this process has declared it before
-- ARGV[5]  how long what was unbound is heeded, ms
--
-- Returns  1 if it is new, 0 if it was there, -1 if it is not bound, because it was unbound or its queue was
--          deleted
--
-- Keeps: what was unbound stays so until a process declares it for the first time. It is forgotten when
-- nobody has wanted to bind it again for so long.

local said, of_queue = unpack(redis.call('HMGET', KEYS[3], ARGV[3], ''))
if ARGV[4] == 'again' and (said or of_queue) == '-' then
  redis.call('PEXPIRE', KEYS[3], ARGV[5])
  return -1
end
local is_new = redis.call('SADD', KEYS[1], ARGV[1])
redis.call('SADD', KEYS[2], ARGV[1])
if KEYS[4] then
  redis.call('SADD', KEYS[4], ARGV[2])
end
if ARGV[4] == 'first' and of_queue then
  -- The other bindings of the deleted queue stay unbound.
  redis.call('HSET', KEYS[3], ARGV[3], '+')
elseif ARGV[4] == 'first' and said then
  redis.call('HDEL', KEYS[3], ARGV[3])
end
return is_new
