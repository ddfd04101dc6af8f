-- Hands out messages that wait for a worker that knows their task (unknown.lua), to one that does. They are
-- taken from the schedule, and count as ready: what limits and orders ready messages does so with these.
-- `queue.waits` has for the index of each priority step the groups of entries that are left: what their
-- names begin with.

-- include: duplicates
-- include: unknown

-- Entries without a message that one script forgets. They must not hide those behind them.
local ABSENT_AT_MOST = 100
-- Entries that are read together.
local ENTRIES = 10

-- Reads what the consumer knows: for each group the index of a queue, a task and a priority step, with \31
-- between them and \30 at the end.
local function read_known(queues, steps, known)
  if known == '' then
    return
  end
  local at, index_of = {}, {}
  for _, queue in ipairs(queues) do
    at[queue.index] = queue
  end
  for step_index, step in ipairs(steps) do
    index_of[step] = step_index
  end
  for index, task, step in string.gmatch(known, '(%d+)\31([^\31\30]*)\31(%d+)\30') do
    local queue = at[tonumber(index)]
    if queue then
      -- As migrate() does with a step that is no longer used.
      local step_index = index_of[step] or index_of['0'] or 1
      queue.unknown = queue.base .. 'unknown'
      queue.waits = queue.waits or { absent = 0 }
      queue.waits[step_index] = queue.waits[step_index] or {}
      table.insert(queue.waits[step_index], { prefix = listed_under(task, step), entries = {}, read = 0 })
    end
  end
end

-- The index of the first step of which messages wait, as far as is known; nil if there is none.
local function waiting_step(queue, steps)
  for step_index = 1, queue.waits and #steps or 0 do
    if queue.waits[step_index] and #queue.waits[step_index] > 0 then
      return step_index
    end
  end
end

-- The next entry of a group; nil if there is none.
local function next_entry(queue, group)
  if group.read >= #group.entries then
    -- The entries that were read before have left the zset.
    group.entries, group.read = first_listed(queue.unknown, group.prefix, ENTRIES), 0
  end
  group.read = group.read + 1
  return group.entries[group.read]
end

-- A source (deliver_ready.lua): takes the next message of a step out of the schedule, of one group after the
-- other. Returns nil if there is none, or if the rest is left to another script, because ABSENT_AT_MOST
-- entries had none.
local function next_waiting(queue, step_index)
  local groups = queue.waits[step_index] or {}
  while #groups > 0 and queue.waits.absent < ABSENT_AT_MOST do
    local group = table.remove(groups, 1)
    local entry = next_entry(queue, group)
    if entry then
      groups[#groups + 1] = group
      redis.call('ZREM', queue.unknown, entry)
      local since_ms, member = time_and_member(entry)
      local stored = member and redis.call('HGET', queue.messages, member)
      if waits_since(stored, since_ms) then
        unschedule(queue.schedule, queue.messages, queue.base .. 'duplicates', member)
        return stored, stored_start(stored)
      end
      queue.waits.absent = queue.waits.absent + 1
    end
  end
end
