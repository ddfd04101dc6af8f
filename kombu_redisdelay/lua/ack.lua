-- Forgets a message for good, and what it held besides: a permit, where consumers may hold a limited number
-- of messages together, or of one key (include/fair_at_limit.lua); and its unique key, so that a message that
-- waits for the key is due now. (A message without any of these is acked by HDEL.)
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  wake zset
-- ARGV[1]  delivery tag
-- ARGV[2]  "1" if it has a permit
-- ARGV[3]  its unique key, as it is in the message (none: it has no key)
--
-- Returns  1 if it was unacked, else 0
--
-- Keeps: at most one message of a key runs. It may be sent again: a key that is held by another message by
-- now stays held.

-- include: base
-- include: wake

local base = base_of(KEYS[2])
local was_unacked = redis.call('HDEL', KEYS[1], ARGV[1])
if was_unacked == 1 and ARGV[2] == '1' then
  -- include: fair_unacked
  local is_counted = release_key(base, KEYS[1], ARGV[1])
  -- A queue of which only the keys are limited is woken for a key.
  if not is_counted or redis.call('HEXISTS', base .. 'control', 'concurrency') == 1 then
    wake(KEYS[2])
  end
end
local mine = string.sub(KEYS[1], #base + #'unacked:' + 1) .. '\30' .. ARGV[1]
if not ARGV[3] or redis.pcall('HGET', base .. 'running', ARGV[3]) ~= mine then
  return was_unacked
end
redis.call('HDEL', base .. 'running', ARGV[3])
-- Mostly, no other message has the key.
if redis.pcall('HEXISTS', base .. 'unique', ARGV[3]) ~= 1 then
  return was_unacked
end

-- include: clock
-- include: unique

-- Nothing of the key runs now, so this is not read.
local record = read_record(base, ARGV[3], UNTIL_TAKEN)
unblock(record, clock_us() / 1000)
write_record(record)
return was_unacked
