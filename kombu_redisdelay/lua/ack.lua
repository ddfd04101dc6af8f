-- Forgets a message of a queue whose consumers may hold a limited number of messages together, or of one key
-- (include/fair_limits.lua). So another one may be taken. (Other messages are acked by HDEL.)
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  wake zset
-- ARGV[1]  delivery tag
--
-- Returns  1 if it was unacked, else 0

-- include: base
-- include: fair_unacked

local was_unacked = redis.call('HDEL', KEYS[1], ARGV[1])
if was_unacked == 1 then
  local base = base_of(KEYS[2])
  local is_counted = release_key(base, KEYS[1], ARGV[1])
  -- A queue of which only the keys are limited is woken for a key.
  if not is_counted or redis.call('HEXISTS', base .. 'control', 'concurrency') == 1 then
    wake(KEYS[2])
  end
end
return was_unacked
