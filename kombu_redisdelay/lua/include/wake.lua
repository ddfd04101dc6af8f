-- Consumers block on this zset, never on messages. One token at most, so that any number of messages
-- wakes once: who adds what is there changes nothing. A server that is out of memory may refuse it; a token
-- that is missing costs a second at most.
local function wake(wake_key)
  redis.pcall('ZADD', wake_key, 0, '1')
end
