-- Publishes a message with a due time: to the schedule, or to its ready list if that time has come.
--
-- KEYS[1]  ready list of the message's priority step
-- KEYS[2]  wake zset
-- KEYS[3]  schedule
-- KEYS[4]  messages
-- KEYS[5]  duplicates
-- KEYS[6+] the other keys of a queue that expires; or the bindings of the exchange that routed the message
-- ARGV[1]  message, as it is to be stored (see include/stored.lua)
-- ARGV[2]  x-expires of the queue, ms (0: none)
-- ARGV[3]  message id
-- ARGV[4]  due time, ms since the epoch, with a fraction (0: none)
-- ARGV[5]  delay, ms from now, with a fraction; the later of the two times counts
-- ARGV[6]  what to do if a message with this id is scheduled: "keep" both, "replace" it by this one, or
--          "ignore" this one
-- ARGV[7+] the bindings that it was routed by (none: it needs no binding)
--
-- Returns  1, or 0 if there are other bindings now: then it was not published
--
-- Keeps: the message is in exactly one place, scheduled or ready, unless it is ignored. A message that
-- it replaces is in none.

-- include: expect
-- include: expire
-- include: stored
-- include: schedule
-- include: bindings
-- include: history

-- There are several only if some were published with "keep". The limit keeps the script bounded.
local REPLACED_AT_MOST = 500

local id, on_conflict = ARGV[3], ARGV[6]

-- A full Redis would not refuse this message any more once others were removed for it. So it gets a command
-- to refuse first, which never changes anything.
local function refuse_when_full()
  redis.call('ZADD', KEYS[3], 'XX', 'GT', '-inf', id)
end

local function is_scheduled()
  if redis.call('HEXISTS', KEYS[4], id) == 1 then
    return true
  end
  for _, member in ipairs(duplicates_of(KEYS[5], id, '', REPLACED_AT_MOST)) do
    if redis.call('HEXISTS', KEYS[4], member) == 1 then
      return true
    end
  end
  return false
end

if not still_bound(KEYS[#KEYS], 7) then
  return 0
end
if on_conflict == 'ignore' and is_scheduled() then
  return 1
end
if on_conflict == 'replace' then
  expect_list(KEYS[1], 'LPUSH')
  refuse_when_full()
  local replaced = unschedule(KEYS[3], KEYS[4], KEYS[5], id)
  for _, member in ipairs(duplicates_of(KEYS[5], id, '', REPLACED_AT_MOST)) do
    replaced = replaced + unschedule(KEYS[3], KEYS[4], KEYS[5], member)
  end
  note(KEYS[3], 'other', -replaced)
end

local now_ms = clock_us() / 1000
local due_ms = math.max(tonumber(ARGV[4]), now_ms + tonumber(ARGV[5]))
if due_ms > now_ms then
  expect_schedule(KEYS[3], KEYS[4])
  schedule(KEYS[3], KEYS[4], KEYS[5], KEYS[2], id, due_ms, ARGV[1])
else
  redis.call('LPUSH', KEYS[1], stored_payload(ARGV[1]))
  wake(KEYS[2])
end
expire(tonumber(ARGV[2]), KEYS)
return 1
