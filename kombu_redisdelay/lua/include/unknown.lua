-- A message that waits for a worker that knows its task is scheduled, and has the member redisdelay-unknown
-- (members.lua). The zset `unknown` lists it, so that such a worker finds it. An entry is
--   <task> \31 <priority step> \31 <since when it waits, ms> \31 <name in the schedule>
-- with 15 digits for the time. All have score 0, so Redis sorts them by name: those of one task and step
-- stand together, the oldest first. broker/unknown_tasks.py makes the text of a task, which has no \31.
--
-- A message that leaves the schedule in another way (because it is due, or cancelled) stays listed until
-- a script comes across its entry. It never means another message: that has no such member, or another time.

-- include: members

-- What the entries of a task and a step begin with.
local function listed_under(task, step)
  return task .. '\31' .. step .. '\31'
end

local function unknown_entry(task, stored, since_ms, member)
  return listed_under(task, stored_step(stored)) .. string.format('%015.0f\31', since_ms) .. member
end

-- The first `count` entries that begin with `prefix`, which listed_under() has made.
local function first_listed(unknown_key, prefix, count)
  local behind = string.sub(prefix, 1, -2) .. '\32'
  return redis.call('ZRANGEBYLEX', unknown_key, '[' .. prefix, '(' .. behind, 'LIMIT', 0, count)
end

-- Since when the message of an entry waits, as text, and the name that it has in the schedule.
local function time_and_member(entry)
  return string.match(entry, '^[^\31]*\31[^\31]*\31(%d+)\31(.*)$')
end

-- Whether `stored` is the message that has waited since then. nil is none.
local function waits_since(stored, since_ms)
  local digits = stored and members_of(stored, stored_start(stored)).unknown
  return digits ~= nil and tonumber(digits) == tonumber(since_ms)
end
