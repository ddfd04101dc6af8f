-- Consumers block on this zset, never on messages. It holds one token at most, and adding it again changes
-- nothing: so any number of messages wakes once. A server that is out of memory may refuse the token. A
-- missing token delays messages by a second at most. So a token that no consumer takes need not stay: the
-- queue may be one without any consumer.
local TOKEN_MS = '300000'

local function wake(wake_key)
  if redis.pcall('ZADD', wake_key, '0', '1') == 1 then
    redis.pcall('PEXPIRE', wake_key, TOKEN_MS)
  end
end
