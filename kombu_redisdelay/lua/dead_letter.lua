-- Moves a message that will not be delivered again to the dead letters.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  dead
-- ARGV[1]  delivery tag ("": it was consumed without acks, and is stored nowhere)
-- ARGV[2]  why, one line
-- ARGV[3]  how many dead letters the queue keeps
-- ARGV[4]  without a tag: "<priority step>:<message>"
-- ARGV[5]  1 if it was delivered now, which counts; 0 if it cannot be delivered
--
-- Returns  1 if it was unacked, else 0; how many older dead letters were dropped for it
--
-- Keeps: the message is in exactly one place. A message that is not unacked any more is in another place by
-- now, and is left there.

-- include: expect
-- include: dead
-- include: history
-- include: unique_unacked
-- include: fair_unacked

expect_list(KEYS[2], 'LPUSH')
local stored = ARGV[4]
if ARGV[1] ~= '' then
  stored = redis.call('HGET', KEYS[1], ARGV[1])
  if not stored then
    return { 0, 0 }
  end
end
-- Also without a tag: so a full Redis allows what follows (include/full.lua). The message is nowhere else.
redis.call('HDEL', KEYS[1], ARGV[1])
local start = stored_start(stored)
local count = deliveries(stored, start) + tonumber(ARGV[5])
local dropped = add_dead_letter(KEYS[2], tonumber(ARGV[3]), count, ARGV[2], stored)
note(KEYS[2], 'dead', 1)
local base = base_of(KEYS[2])
free_key(key_of_unacked(base, KEYS[1], ARGV[1], stored, start), clock_us() / 1000)
if counts_keys(base) then
  release_key(base, KEYS[1], ARGV[1])
end
return { 1, dropped }
