-- Binds a queue to an exchange, or takes bindings of it out, and notes that. Who only says again what it has
-- declared before heeds what others have taken back meanwhile.
--
-- KEYS[1]  bindings of the exchange
-- KEYS[2]  those of them that do not expire
-- KEYS[3]  hash: what was unbound of this queue
-- KEYS[4]  exchanges to which queues of other names are bound (none: the queue has the name of the exchange)
-- ARGV[1]  "first"; "again" if this process has declared the binding before; or "unbind"
-- ARGV[2]  exchange
-- ARGV[3]  what KEYS[3] has of this binding; to unbind, also "": all bindings, because the queue was deleted
-- ARGV[4]  how long what was unbound is heeded, ms
-- ARGV[5+] the binding; to unbind, any number of them
--
-- Returns  1 if it is new, 0 if it was there, -1 if it is not bound, because it was unbound or its queue was
--          deleted; to unbind, how many of them were there
--
-- Keeps: what was unbound stays so until a process declares it for the first time. It is forgotten when
-- nobody has wanted to bind it again for so long. To unbind works in a full Redis.

local FIRST = 5
local how = ARGV[1]

local function bind()
  local said, of_queue = unpack(redis.call('HMGET', KEYS[3], ARGV[3], ''))
  if how == 'again' and (said or of_queue) == '-' then
    redis.call('PEXPIRE', KEYS[3], ARGV[4])
    return -1
  end
  local is_new = redis.call('SADD', KEYS[1], ARGV[FIRST])
  redis.call('SADD', KEYS[2], ARGV[FIRST])
  if KEYS[4] then
    redis.call('SADD', KEYS[4], ARGV[2])
  end
  if how == 'first' and of_queue then
    -- The other bindings of the deleted queue stay unbound.
    redis.call('HSET', KEYS[3], ARGV[3], '+')
  elseif how == 'first' and said then
    redis.call('HDEL', KEYS[3], ARGV[3])
  end
  return is_new
end

local function unbind()
  -- A full Redis refuses no script that removes first (include/full.lua).
  redis.call('HDEL', KEYS[3], ARGV[3])
  local removed = 0
  if ARGV[FIRST] then
    removed = redis.call('SREM', KEYS[1], unpack(ARGV, FIRST))
    redis.call('SREM', KEYS[2], unpack(ARGV, FIRST))
  end
  if KEYS[4] and redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('SREM', KEYS[4], ARGV[2])
  end
  if ARGV[3] == '' then
    -- Also what was declared again since it was deleted before.
    redis.call('DEL', KEYS[3])
  end
  redis.call('HSET', KEYS[3], ARGV[3], '-')
  redis.call('PEXPIRE', KEYS[3], ARGV[4])
  return removed
end

return how == 'unbind' and unbind() or bind()
