-- Gives back messages that a consumer holds in a queue: to their ready lists, to the schedule, or to the dead
-- letters. If the consumer is to be forgotten, this is done once it holds nothing; before, the script looks
-- whether its lease has ended or does not count. Bounded: call it until all were looked at.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  ready list of step 0
-- KEYS[3]  wake zset
-- KEYS[4]  dead:index
-- KEYS[5]  schedule
-- KEYS[6]  messages
-- KEYS[7]  duplicates
-- KEYS[8]  consumers
-- ARGV     see below, by their names
--
-- Returns  how many of the messages were looked at, how many of these were unacked, how many of those are now
--          dead letters, how many older dead letters were dropped for them, 1 when nothing is left to do for
--          a consumer that is to be forgotten, the briefs of some that went back although their consumer did
--          not give them back, and of some that are dead letters now (include/brief.lua); pairs of a delivery
--          tag and a message, as it is stored, for those that must wait or die and have no id. They are still
--          unacked: call again with their ids
--
-- Keeps: a message leaves the unacked hash only into a ready list, into the schedule or to the dead letters.
-- A message that is not unacked any more is in another place by now, and is left there. The message that was
-- taken first is at the head again, and is taken first again. A consumer whose lease was renewed in the
-- meantime keeps what it holds.

-- include: give_back

local
  -- The consumer that is to be forgotten ("": it stays).
  consumer,
  -- "1" if it keeps its messages while its lease lasts; else its process has ended, or gives back its own.
  lease_counts,
  -- "unseen", "returned", "lost" or "failed" (include/give_back.lua).
  reason,
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
  -- How long these messages wait, ms ("": as retry_wait_ms says).
  delay_ms,
  -- How many messages. They are the last of ARGV: delivery tag and id of each. The message that is to be
  -- taken last comes first. If an id is "", it is not known.
  count = unpack(ARGV)

if lease_counts == '1' and tonumber(redis.call('ZSCORE', KEYS[8], consumer) or 0) > clock_ms() then
  return { 0, 0, 0, 0, 1, {}, {}, {} }
end

byte_limit = tonumber(byte_limit)
local queue = {
  base = base_of(KEYS[3]),
  unacked = KEYS[1],
  ready = KEYS[2],
  wake = KEYS[3],
  dead = KEYS[4],
  schedule = KEYS[5],
  messages = KEYS[6],
  duplicates = KEYS[7],
  separator = separator,
  delivery_limit = tonumber(delivery_limit),
  dead_limit = tonumber(dead_limit),
  isolated_from = tonumber(isolated_from),
  expires_ms = tonumber(expires_ms),
  retry_wait_ms = tonumber(retry_wait_ms),
  delay_ms = tonumber(delay_ms),
}
read_features(queue)
local lost, done = {}, nothing_given_back()

-- Returns how many messages it looked at. A function, because Lua allows only so many locals in one.
local function give_back_some()
  local most, looked_at, bytes = most_given_back(queue, tonumber(count)), 0, 0
  for i = #ARGV - 2 * count + 1, #ARGV, 2 do
    if bytes >= byte_limit or looked_at >= most then
      break
    end
    looked_at = looked_at + 1
    local stored, where, key_bytes = give_back(ARGV[i], ARGV[i + 1], reason, queue, done)
    bytes = bytes + (stored and #stored or 0) + (key_bytes or 0)
    if where and where ~= 'dead' and reason == 'lost' then
      add_brief(lost, stored)
    end
  end
  return looked_at
end

local looked_at = give_back_some()
tell_of_given_back(reason, queue, done)
local is_done = 0
if consumer ~= '' and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('ZREM', KEYS[8], consumer)
  is_done = 1
end
return { looked_at, done.settled, done.dead, done.dropped, is_done, lost, done.briefs, done.unnamed }
