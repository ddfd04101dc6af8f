-- Forgets a consumer of a queue, if it holds nothing there.
--
-- KEYS[1]  consumers
-- KEYS[2]  unacked of the consumer
-- ARGV[1]  consumer
--
-- Returns  1 if it is forgotten, 0 if it holds messages
--
-- Keeps: a consumer that holds messages stays known, so that others find them if it dies.

if redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
