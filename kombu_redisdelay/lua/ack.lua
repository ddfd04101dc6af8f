-- Forgets a message of a queue whose consumers may hold a limited number of messages together. That leaves
-- room for another one. (Other messages are acked by HDEL.)
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  wake zset
-- ARGV[1]  delivery tag
--
-- Returns  1 if it was unacked, else 0

-- include: wake

local was_unacked = redis.call('HDEL', KEYS[1], ARGV[1])
if was_unacked == 1 then
  wake(KEYS[2])
end
return was_unacked
