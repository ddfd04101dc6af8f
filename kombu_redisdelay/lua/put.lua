-- Adds a message that is due now to its ready list.
--
-- KEYS[1]  ready list of the message's priority step
-- KEYS[2]  wake zset
-- KEYS[3+] the other keys of a queue that expires; or the bindings of the exchange that routed the message
-- ARGV[1]  message
-- ARGV[2]  "tail", where publishers put it, or "head", where it is the next to be taken
-- ARGV[3]  x-expires of the queue, ms (0: none)
-- ARGV[4+] the bindings that it was routed by (none: it needs no binding)
--
-- Returns  1, or 0 if there are other bindings now: then it was not added
--
-- Keeps: the message is in exactly one place, the ready list; a consumer that waits is woken.

-- include: wake
-- include: expire
-- include: bindings

if not still_bound(KEYS[#KEYS], 4) then
  return 0
end
redis.call(ARGV[2] == 'head' and 'RPUSH' or 'LPUSH', KEYS[1], ARGV[1])
wake(KEYS[2])
expire(tonumber(ARGV[3]), KEYS)
return 1
