-- Consumers block on this zset, never on messages. It holds one token at most, and adding it again changes
-- nothing: so any number of messages wakes once. A server that is out of memory may refuse the token. A
-- missing token delays messages by a second at most.
local function wake(wake_key)
  redis.pcall('ZADD', wake_key, 0, '1')
end
