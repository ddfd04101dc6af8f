-- Which queues have ready messages that may be taken, and when the next message of each is due, or may be
-- taken.
--
-- KEYS     wake of each queue; the other keys are made from it (see include/queue.lua)
-- ARGV[1]  global_keyprefix
-- ARGV[2]  separator between a queue's name and a priority step
-- ARGV[3]  how many braces a ready list has on each side of the queue's name (1 on a cluster, else 0)
-- ARGV[4]  consumer
-- ARGV[5+] the priority steps
--
-- Returns  pairs of the index of a queue that has ready messages and the index of the first step that has
--          one; pairs of the index of a queue and the microseconds until its next message is due, or may be
--          taken if no other consumer watches for that. All are separated by spaces

-- include: base
-- include: clock
-- include: queue
-- include: limits
-- include: first_due

local prefix, separator, braces, consumer = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local steps = { unpack(ARGV, 5) }

local now_us = clock_us()
local queues = {}
for index, wake_key in ipairs(KEYS) do
  local base = base_of(wake_key)
  queues[index] = { base = base, consumers = base .. 'consumers', needs_ack = true }
end
read_limits(queues, now_us)

-- The index of the first step of which a fair queue (include/fair.lua) has a key that may be served, or a
-- message that is not sorted by key; nil if there is none.
local function first_fair_step(queue, lists)
  for step_index, list in ipairs(lists) do
    if redis.call('EXISTS', queue.base .. 'turns:' .. steps[step_index], list) > 0 then
      return step_index
    end
  end
end

-- Microseconds until the first of its keys may go on by its rate; -1 if there is none, or if another consumer
-- comes for it (include/fair_limits.lua).
local function until_alarm_us(base)
  local alarm_us = tonumber(redis.call('ZRANGE', base .. 'alarms', 0, 0, 'WITHSCORES')[2])
  local watcher, watched_us = unpack(redis.call('HMGET', base .. 'control', 'key_watcher', 'key_watched_us'))
  watched_us = watcher and watcher ~= consumer and tonumber(watched_us) or 0
  if alarm_us and watched_us > now_us and watched_us <= alarm_us then
    return -1
  end
  return until_us(alarm_us and alarm_us / 1000, now_us)
end

local ready, due = {}, {}
for index, queue in ipairs(queues) do
  local next_us = until_us(first_due(queue.base .. 'schedule'), now_us)
  local lists = ready_lists(ready_of(KEYS[index], prefix, braces), separator, steps)
  local step_index
  if queue.fair then
    step_index = first_fair_step(queue, lists)
    next_us = sooner(next_us, until_alarm_us(queue.base))
  else
    step_index = first_ready_step(lists)
  end
  if step_index and may_take(queue) then
    ready[#ready + 1] = index .. ' ' .. step_index
  elseif step_index and is_unwatched(queue, consumer) then
    next_us = sooner(next_us, until_token_us(queue, now_us))
  end
  if next_us >= 0 then
    due[#due + 1] = string.format('%d %.0f', index, next_us)
  end
end
return { table.concat(ready, ' '), table.concat(due, ' ') }
