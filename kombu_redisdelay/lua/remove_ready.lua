-- Removes one ready message. Redis looks for it from one end of the list: in the middle of a million
-- messages, that takes 0.1 s.
--
-- KEYS[1]  ready list
-- KEYS[2]  wake zset
-- ARGV[1]  1 to look from the end where publishers put messages, -1 from the other end
-- ARGV[2]  message
--
-- Returns  1 if it was ready, else 0
--
-- Keeps: a message that is taken in the meantime is in another place by now, and is left alone.

-- include: history

local removed = redis.call('LREM', KEYS[1], ARGV[1], ARGV[2])
note(KEYS[2], 'other', -removed)
return removed
