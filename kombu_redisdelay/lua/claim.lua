-- Lets one of several workers do something about a queue: the first that asks. The claim ends by itself.
--
-- KEYS[1]  claim
-- ARGV[1]  name of the worker that asks
-- ARGV[2]  how long the claim lasts, ms
--
-- Returns  1 if this worker has the claim, else 0

-- include: full

work_when_full(KEYS[1])

if redis.call('HSETNX', KEYS[1], 'by', ARGV[1]) == 0 and redis.call('HGET', KEYS[1], 'by') ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
