-- Consumers block on this list, never on messages. One token at most, so that any number of messages
-- wakes once and the list does not grow while nobody listens. A server that is out of memory may refuse
-- it; a token that is missing costs a second at most.
local function wake(wake_key)
  if redis.call('EXISTS', wake_key) == 0 then
    redis.pcall('LPUSH', wake_key, '1')
  end
end
