-- Gives back what a consumer holds in a queue, if its lease has ended or its process is known to have ended,
-- and forgets the consumer once it holds nothing. Bounded: call it until it is done.
--
-- KEYS[1]  consumers
-- KEYS[2]  unacked of the consumer
-- KEYS[3]  ready list of step 0
-- KEYS[4]  wake zset
-- KEYS[5]  dead
-- KEYS[6]  schedule
-- KEYS[7]  messages
-- KEYS[8]  duplicates
-- ARGV     see below, by their names
--
-- Returns  how many of the messages were looked at, how many of these were unacked, how many of those are now
--          dead letters, how many older dead letters were dropped for them, 1 when nothing is left to do, the
--          briefs of some that went back although their consumer did not give them back, and of some that
--          are dead letters now (include/brief.lua); pairs of a delivery tag and a message, as it is stored,
--          for those that must wait and have no id. They are still unacked: call again with their ids
--
-- Keeps: the message that was taken first is at the head again, and is taken first again. A consumer
-- whose lease was renewed in the meantime keeps what it holds.

-- include: give_back

local
  consumer,
  -- "1" if its lease does not count, because its process has ended, or gives back its own messages.
  is_lost,
  -- "returned" or "lost" (include/give_back.lua).
  how,
  -- How many bytes at most.
  byte_limit,
  -- Between a queue's name and a priority step.
  separator,
  -- How many failures a message may have (0: any number).
  delivery_limit,
  -- How many dead letters the queue keeps.
  dead_limit,
  -- How many times a message may be lost before it is isolated (0: each time is a failure).
  isolated_from,
  -- x-expires of the queue, ms (0: none).
  expires_ms,
  -- How long a message waits after its second failure, ms; each time twice as long.
  retry_wait_ms,
  -- How many messages. They are the last of ARGV: delivery tag and id of each. The message that is to be
  -- taken last comes first. If an id is "", it is not known.
  count = unpack(ARGV)

local lease_end_ms = tonumber(redis.call('ZSCORE', KEYS[1], consumer) or 0)
if is_lost ~= '1' and lease_end_ms > clock_ms() then
  return { 0, 0, 0, 0, 1, {}, {}, {} }
end

byte_limit = tonumber(byte_limit)
local queue = {
  base = base_of(KEYS[4]),
  unacked = KEYS[2],
  ready = KEYS[3],
  wake = KEYS[4],
  dead = KEYS[5],
  schedule = KEYS[6],
  messages = KEYS[7],
  duplicates = KEYS[8],
  separator = separator,
  delivery_limit = tonumber(delivery_limit),
  dead_limit = tonumber(dead_limit),
  isolated_from = tonumber(isolated_from),
  expires_ms = tonumber(expires_ms),
  retry_wait_ms = tonumber(retry_wait_ms),
}
read_fairness(queue)
-- In a queue that counts keys, a message costs three times as much.
local most = queue.counts_keys and 50 or queue.fair and 100 or tonumber(count)
local looked_at, bytes, lost, done = 0, 0, {}, nothing_given_back()
for i = #ARGV - 2 * count + 1, #ARGV, 2 do
  if bytes >= byte_limit or looked_at >= most then
    break
  end
  looked_at = looked_at + 1
  local stored, where, key_bytes = give_back(ARGV[i], ARGV[i + 1], how, queue, done)
  bytes = bytes + (stored and #stored or 0) + (key_bytes or 0)
  if where and where ~= 'dead' and how == 'lost' then
    add_brief(lost, stored)
  end
end
tell_of_given_back(how, queue, done)
local is_done = 0
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('ZREM', KEYS[1], consumer)
  is_done = 1
end
return { looked_at, done.settled, done.dead, done.dropped, is_done, lost, done.briefs, done.unnamed }
