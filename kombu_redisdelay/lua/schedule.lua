-- Publishes messages with due times to one queue: each to the schedule, or to its ready list if its time has
-- come. Bounded: the caller bounds the messages and their bytes.
--
-- KEYS[1]  ready list of the messages' priority step
-- KEYS[2]  wake zset
-- KEYS[3]  schedule
-- KEYS[4]  messages
-- KEYS[5]  duplicates
-- KEYS[6+] the other keys of a queue that expires; or the bindings of the exchange that routed the messages
-- ARGV[1]  x-expires of the queue, ms (0: none)
-- ARGV[2]  what to do if a message with this id is scheduled: "keep" both, "replace" it by this one, or
--          "ignore" this one
-- ARGV[3]  how many messages: several only with "keep"
-- ARGV[4+] four for each message: its id; its due time, ms since the epoch, with a fraction (0: none); its
--          delay, ms from now, with a fraction; the later of the two times counts; and the message, as it is
--          to be stored (see include/stored.lua). Then the bindings that they were routed by (none: they need
--          no binding)
--
-- Returns  1, or 0 if there are other bindings now: then nothing was published
--
-- Keeps: each message is in exactly one place, scheduled or ready, unless it is ignored. A message that
-- it replaces is in none.

-- include: expect
-- include: expire
-- include: stored
-- include: schedule
-- include: bindings
-- include: history

local FIRST, ARGS_PER_MESSAGE = 4, 4
-- There are several only if some were published with "keep". The limit keeps the script bounded.
local REPLACED_AT_MOST = 500

local on_conflict, count = ARGV[2], tonumber(ARGV[3])

if not still_bound(KEYS[#KEYS], FIRST + ARGS_PER_MESSAGE * count) then
  return 0
end
-- Where the id matters: the names of those that may be scheduled under it.
local others = {}
if on_conflict ~= 'keep' then
  others = { ARGV[FIRST], unpack(duplicates_of(KEYS[5], ARGV[FIRST], '', REPLACED_AT_MOST)) }
end
for _, member in ipairs(others) do
  if on_conflict == 'ignore' and redis.call('HEXISTS', KEYS[4], member) == 1 then
    return 1
  end
end
local now_ms = clock_us() / 1000
local due_ms, later = {}, 0
for n = 1, count do
  local i = FIRST + ARGS_PER_MESSAGE * (n - 1)
  due_ms[n] = math.max(tonumber(ARGV[i + 1]), now_ms + tonumber(ARGV[i + 2]))
  later = later + (due_ms[n] > now_ms and 1 or 0)
end
if later < count or on_conflict == 'replace' then
  expect_list(KEYS[1], 'LPUSH')
end
if later > 0 then
  expect_schedule(KEYS[3], KEYS[4])
end
if on_conflict == 'replace' then
  -- A full Redis would not refuse this message any more once others were removed for it. So it gets a command
  -- to refuse first, which never changes anything.
  redis.call('ZADD', KEYS[3], 'XX', 'GT', '-inf', ARGV[FIRST])
  local replaced = 0
  for _, member in ipairs(others) do
    replaced = replaced + unschedule(KEYS[3], KEYS[4], KEYS[5], member)
  end
  note(KEYS[3], 'other', -replaced)
end
local times, is_to_wake = {}, later < count
for n = 1, count do
  local i = FIRST + ARGS_PER_MESSAGE * (n - 1)
  if due_ms[n] > now_ms then
    times[#times + 1] = due_ms[n]
    times[#times + 1] = store_under_id(KEYS[4], KEYS[5], ARGV[i], ARGV[i + 3])
  else
    redis.call('LPUSH', KEYS[1], stored_payload(ARGV[i + 3]))
  end
end
if later > 0 then
  redis.call('ZADD', KEYS[3], unpack(times))
  local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
  for i = 2, #times, 2 do
    is_to_wake = is_to_wake or times[i] == first
  end
end
if is_to_wake then
  wake(KEYS[2])
end
expire(tonumber(ARGV[1]), KEYS)
return 1
