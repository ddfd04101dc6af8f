-- Which queues have ready messages, and when the next scheduled message of each is due.
--
-- KEYS     wake of each queue; the other keys are made from it (see include/queue.lua)
-- ARGV[1]  global_keyprefix
-- ARGV[2]  separator between a queue's name and a priority step
-- ARGV[3]  how many braces a ready list has on each side of the queue's name (1 on a cluster, else 0)
-- ARGV[4+] the priority steps
--
-- Returns  pairs of the index of a queue that has ready messages and the index of the first step that has
--          one; pairs of the index of a queue and the microseconds until its next message is due. All are
--          separated by spaces

-- include: clock
-- include: stored
-- include: queue
-- include: expect
-- include: migrate

local prefix, separator, braces = ARGV[1], ARGV[2], tonumber(ARGV[3])
local steps = { unpack(ARGV, 4) }

local now_us = clock_us()
local ready, due = {}, {}
for index, wake_key in ipairs(KEYS) do
  local step_index = first_ready_step(ready_lists(ready_of(wake_key, prefix, braces), separator, steps))
  if step_index then
    ready[#ready + 1] = index .. ' ' .. step_index
  end
  local due_ms = first_due(base_of(wake_key) .. 'schedule')
  if due_ms then
    due[#due + 1] = string.format('%d %.0f', index, until_us(due_ms, now_us))
  end
end
return { table.concat(ready, ' '), table.concat(due, ' ') }
