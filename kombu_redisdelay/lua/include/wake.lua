-- Consumers block on this zset, never on messages. One token at most, so that any number of messages
-- wakes once: who adds what is there changes nothing. A server that is out of memory may refuse it; a token
-- that is missing costs a second at most. So one that nobody takes need not stay: the queue may be one that
-- nobody ever consumes from.
local TOKEN_MS = 300000

local function wake(wake_key)
  redis.pcall('ZADD', wake_key, 0, '1')
  redis.pcall('PEXPIRE', wake_key, TOKEN_MS)
end
