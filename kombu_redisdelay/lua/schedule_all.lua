-- Publishes messages with due times to one queue: as schedule.lua does for one message with "keep", in a
-- queue that does not expire. Bounded: the caller bounds the messages and their bytes.
--
-- KEYS[1]  ready list of the messages' priority step
-- KEYS[2]  wake zset
-- KEYS[3]  schedule
-- KEYS[4]  messages
-- KEYS[5]  duplicates
-- ARGV[1+] four for each message: its id; its due time, ms since the epoch, with a fraction (0: none); its
--          delay, ms from now, with a fraction, of which the later counts; and the message, as it is to be
--          stored (see include/stored.lua)
--
-- Returns  1
--
-- Keeps: each message is in exactly one place, scheduled or ready.

-- include: expect
-- include: stored
-- include: schedule

local ARGS_PER_MESSAGE = 4

expect_list(KEYS[1], 'LPUSH')
expect_schedule(KEYS[3], KEYS[4])
local now_ms = clock_us() / 1000
local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
local scheduled, has_ready = {}, false
for i = 1, #ARGV, ARGS_PER_MESSAGE do
  local due_ms = math.max(tonumber(ARGV[i + 1]), now_ms + tonumber(ARGV[i + 2]))
  local stored = ARGV[i + 3]
  if due_ms > now_ms then
    scheduled[#scheduled + 1] = due_ms
    scheduled[#scheduled + 1] = store_under_id(KEYS[4], KEYS[5], ARGV[i], stored)
  else
    redis.call('LPUSH', KEYS[1], stored_payload(stored))
    has_ready = true
  end
end
if #scheduled > 0 then
  redis.call('ZADD', KEYS[3], unpack(scheduled))
end
if has_ready or redis.call('ZRANGE', KEYS[3], 0, 0)[1] ~= first then
  wake(KEYS[2])
end
return 1
