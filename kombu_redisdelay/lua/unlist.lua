-- Takes a name out of a zset, unless there is something that it stands for: a consumer leaves a queue in
-- which it holds nothing; or a full Redis has refused a message, and its wake-up token is taken back. A token
-- that stays does no harm: it wakes a consumer for nothing.
--
-- KEYS[1]  consumers, or the wake zset
-- KEYS[2]  unacked of the consumer, or the ready list that the message was to go to
-- ARGV[1]  the consumer, or the token
--
-- Returns  1 if it is not listed any more, else 0
--
-- Keeps: a consumer that holds messages stays known, so that others find them if it dies. No message is
-- touched.

if redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
