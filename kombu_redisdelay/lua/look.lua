-- Which queues have ready messages, and when the next scheduled message of each is due.
--
-- KEYS     wake of each queue; the other keys are made from it (see include/queue.lua)
-- ARGV[1]  global_keyprefix
-- ARGV[2]  separator between a queue's name and a priority step
-- ARGV[3+] the priority steps
--
-- Returns  the indices of the queues that have ready messages; pairs of the index of a queue and the
--          microseconds until its next message is due. Both are separated by spaces

-- include: clock
-- include: stored
-- include: queue
-- include: expect
-- include: migrate

local prefix, separator = ARGV[1], ARGV[2]
local steps = { unpack(ARGV, 3) }

local now_us = clock_us()
local ready, due = {}, {}
for index, wake_key in ipairs(KEYS) do
  if redis.call('EXISTS', unpack(ready_lists(wake_key, prefix, separator, steps))) > 0 then
    ready[#ready + 1] = index
  end
  local due_ms = first_due(base_of(wake_key) .. 'schedule')
  if due_ms then
    due[#due + 1] = string.format('%d %.0f', index, until_us(due_ms, now_us))
  end
end
return { table.concat(ready, ' '), table.concat(due, ' ') }
