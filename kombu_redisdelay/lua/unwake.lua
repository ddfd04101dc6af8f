-- Removes the wake-up token of a message that a full Redis has refused, unless the list has a message that
-- the token may be for. A token that stays does no harm: it wakes a consumer for nothing.
--
-- KEYS[1]  ready list that the message was to go to
-- KEYS[2]  wake zset
--
-- Keeps: no message is touched.

if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[2])
end
