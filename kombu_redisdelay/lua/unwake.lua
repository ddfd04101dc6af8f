-- Removes the wake-up token of a message that a full Redis has refused, unless there is a message that it may
-- be about. One that stays does no harm, it wakes a consumer for nothing.
--
-- KEYS[1]  ready list that the message was to go to
-- KEYS[2]  wake zset
--
-- Keeps: no message is touched.

if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[2])
end
