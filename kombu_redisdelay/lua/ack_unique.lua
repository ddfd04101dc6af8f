-- Forgets a message that holds a key, and with it the key: what waits for the key is due now. (Messages
-- without a key are acked by HDEL.)
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  wake zset
-- ARGV[1]  delivery tag
-- ARGV[2]  key, as it is in the message
-- ARGV[3]  "1" if the consumers of the queue may hold a limited number of messages together: that leaves room
--          for another one
--
-- Returns  1 if it was unacked, else 0
--
-- Keeps: at most one message of a key runs. It may be sent again: a key that is held by another message by
-- now stays held.

-- include: clock
-- include: wake
-- include: stored
-- include: members
-- include: unique

local base = string.sub(KEYS[2], 1, -#'wake' - 1)
local was_unacked = redis.call('HDEL', KEYS[1], ARGV[1])
local record = read_record(base, ARGV[2])
local running = record.running
if running and running.tag == ARGV[1] and KEYS[1] == base .. 'unacked:' .. running.consumer then
  record.running = nil
  let_go(record, clock_us() / 1000)
  write_record(record)
end
if was_unacked == 1 and ARGV[3] == '1' then
  wake(KEYS[2])
end
return was_unacked
