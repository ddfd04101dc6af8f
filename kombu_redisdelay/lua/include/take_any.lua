-- The take of any consumer, from any queues: take.lua puts it into a function, and has its arguments.

-- include: queue
-- include: migrate
-- include: deliver_large
-- include: deliver_ready

local takes_in_turn, is_again, may_come_again = in_turn == '1', is_repeated == '1', polls_again == '1'
local steps = { unpack(ARGV, #ARGV - step_count + 1) }

local options = {}
for index, no_ack, expires_ms, unacked_ttl_ms in string.gmatch(queue_options, '(%d+) (%d) (%d+) (%d+)') do
  options[tonumber(index)] = {
    needs_ack = no_ack ~= '1',
    expires_ms = tonumber(expires_ms),
    unacked_ttl_ms = tonumber(unacked_ttl_ms),
  }
end
local usual = { needs_ack = true, expires_ms = 0, unacked_ttl_ms = 0 }

local function queue_at(index)
  local wake_key, option = KEYS[index], options[index] or usual
  local base, name = base_of(wake_key), ready_of(wake_key, prefix, braces)
  return {
    index = index,
    name = name,
    base = base,
    wake = wake_key,
    schedule = base .. 'schedule',
    messages = base .. 'messages',
    unacked = base .. 'unacked:' .. consumer,
    consumers = base .. 'consumers',
    history = base .. 'history',
    needs_ack = option.needs_ack,
    expires_ms = option.expires_ms,
    unacked_ttl_ms = option.unacked_ttl_ms,
    ready = ready_lists(name, separator, steps),
    next_ready = next_in_list,
    counts = {},
    taken = {},
  }
end

-- The list of each priority step.
local function by_step(lists)
  local ready_at = {}
  for step_index, step in ipairs(steps) do
    ready_at[step] = lists[step_index]
  end
  return ready_at
end

-- Of too many queues, chooses those that have the highest priorities, and then come first in order.
-- Returns their indices, and pairs for the others that have something.
local function leave_out(polled)
  local step_of, order_of = {}, {}
  for i, index in ipairs(polled) do
    local name = ready_of(KEYS[index], prefix, braces)
    step_of[index] = first_ready_step(ready_lists(name, separator, steps)) or 0
    order_of[index] = i
  end
  table.sort(polled, function(a, b)
    if step_of[a] ~= step_of[b] then
      return step_of[a] < step_of[b]
    end
    return order_of[a] < order_of[b]
  end)
  local worked_on, others = { unpack(polled, 1, QUEUES_AT_MOST) }, {}
  for i = QUEUES_AT_MOST + 1, #polled do
    others[#others + 1] = polled[i] .. ' ' .. step_of[polled[i]]
  end
  table.sort(worked_on, function(a, b)
    return order_of[a] < order_of[b]
  end)
  return worked_on, others
end

-- The indices of the queues to work on, and pairs for those that have to wait for another take.
local function choose()
  local polled, is_polled = {}, {}
  for index in string.gmatch(polled_indices, '%d+') do
    polled[#polled + 1] = tonumber(index)
    is_polled[tonumber(index)] = true
  end
  if is_again then
    -- The first call may have found queues that were woken, and its reply was lost.
    for index, wake_key in ipairs(KEYS) do
      if not is_polled[index] and redis.call('EXISTS', base_of(wake_key) .. 'unacked:' .. consumer) == 1 then
        polled[#polled + 1] = index
      end
    end
    return polled, {}
  end
  if #polled < #KEYS then
    for _, index in ipairs(find_woken(KEYS, is_polled, tonumber(look_from), QUEUES_AT_MOST)) do
      polled[#polled + 1] = index
    end
    if not takes_in_turn then
      table.sort(polled)
    end
  end
  if #polled <= QUEUES_AT_MOST then
    return polled, {}
  end
  return leave_out(polled)
end

local function count_ready(queue)
  for step_index, list in ipairs(queue.ready) do
    queue.counts[step_index] = redis.call('LLEN', list)
  end
end

-- The index of the first step that has a ready message; nil if there is none.
local function has_ready(queue)
  for step_index, count in ipairs(queue.counts) do
    if count > 0 then
      return step_index
    end
  end
end

-- Reads every key of a queue that will be written to, except the unacked hash, which deliver_again() reads.
-- If one has a wrong type, this raises an error before anything was done: later, messages of other queues
-- would be lost that were handed out already.
local function read(queue)
  count_ready(queue)
  queue.first_due_ms = first_due(queue.schedule)
  if queue.first_due_ms or queue.waits or queue.has_unique then
    expect_schedule(queue.schedule, queue.messages)
  end
  if queue.waits then
    redis.call('ZCARD', queue.unknown)
  end
  if queue.needs_ack then
    queue.lease_end_ms = tonumber(redis.call('ZSCORE', queue.consumers, consumer)) or 0
  end
end

-- Finds out in which queues a key is held.
local function find_unique(worked_on)
  local keys = {}
  for _, queue in ipairs(worked_on) do
    keys[#keys + 1] = queue.base .. 'unique'
    keys[#keys + 1] = queue.base .. 'running'
  end
  if count_existing(keys, 1, #keys) > 0 then
    for _, queue in ipairs(worked_on) do
      queue.has_unique = has_unique(queue.base)
    end
  end
end

-- What is done with fair queues (include/fair.lua). Most consumers have none: so it is made only if there is
-- one.
local function for_fair_queues()
  -- include: fair_take
  return {
    open = open_fair,
    enter = enter_fair,
    count = count_key,
    leave = leave_fair,
  }
end

local worked_on, may_have_more = choose()
local queues = {}
for i, index in ipairs(worked_on) do
  queues[i] = queue_at(index)
end
read_known(queues, steps, known_tasks)
find_unique(queues)
for _, queue in ipairs(queues) do
  read(queue)
end

local now_us = clock_us()
local batch = {
  consumer = consumer,
  now_ms = now_us / 1000,
  limit = tonumber(limit),
  byte_limit = tonumber(byte_limit),
  first_tag = tonumber(first_tag),
  isolated_from = tonumber(isolated_from),
  count = 0,
  bytes = 0,
  messages = {},
  from = {},
  migrates_large = false,
}
read_limits(queues, now_us)
for _, queue in ipairs(queues) do
  if queue.fair then
    batch.fair = batch.fair or for_fair_queues()
    batch.fair.open(queue, steps, now_us, batch.first_tag)
  end
end
local budget = { messages = tonumber(migrate_limit), bytes = batch.byte_limit, large = batch.byte_limit }
if deliver_again(batch, queues) then
  batch.limit = 0
  budget.bytes = budget.bytes - batch.bytes
end

-- What leaves a ready list or the schedule has to be held: include/expect.lua.
local function expect_to_hold(queue)
  local step_index = has_ready(queue)
  if step_index then
    expect_right('RPOP', queue.ready[step_index])
  end
  if queue.needs_ack and (step_index or queue.next_us == 0 or queue.fair or waiting_step(queue, steps)) then
    expect_right('HSET', queue.unacked, '', '')
  end
end

local missing, any_ready = 0, false
for _, queue in ipairs(queues) do
  queue.next_us = until_us(queue.first_due_ms, now_us)
  if batch.limit > 0 then
    expect_to_hold(queue)
  end
end
for _, queue in ipairs(queues) do
  if queue.next_us == 0 then
    local moved, queue_missing
    moved, queue_missing, queue.next_us = migrate(
      queue.base, queue.name, by_step(queue.ready), now_us, budget, function(stored)
        return deliver_large(batch, queue, stored, queues, steps)
      end
    )
    missing = missing + queue_missing
    if moved > 0 then
      count_ready(queue)
    end
  end
  if queue.fair then
    batch.fair.enter(queue, budget)
    batch.migrates_large = batch.migrates_large or budget.had_large
  end
  any_ready = any_ready or has_ready(queue) ~= nil or waiting_step(queue, steps) ~= nil
end

local only_migrated = any_ready and batch.limit > 0 and batch.migrates_large
local is_whole, refusal = true, nil
if any_ready and batch.limit > 0 and not only_migrated then
  is_whole, refusal = pcall(deliver_ready, batch, queues, steps, takes_in_turn)
end
hold(queues, consumer, math.floor(now_us / 1000), lease_ms, fresh_ms)
if not is_whole then
  -- The caller comes again, and gets what is held.
  error(refusal, 0)
end
-- A consumer that got messages handles these first. But it may be the only one that knows the task of what
-- waits for such a worker.
local comes = may_come_again and batch.limit > 0
for _, queue in ipairs(queues) do
  if queue.fair then
    batch.fair.leave(queue, consumer, comes and batch.count == 0)
  end
end

local due, with_permits = {}, {}
for _, queue in ipairs(queues) do
  local step_index, waits_at = has_ready(queue), waiting_step(queue, steps)
  local is_throttled = (step_index or waits_at) and not may_take(queue)
  spend(queue, #queue.taken / 2, step_index and is_throttled and batch.count < batch.limit)
  local may_watch = comes and (batch.count == 0 or waits_at)
  local is_to_be_watched = is_throttled and is_unwatched(queue, consumer)
  if is_to_be_watched and may_watch then
    watch(queue, consumer)
    queue.next_us = sooner(queue.next_us, until_token_us(queue, now_us))
  elseif is_to_be_watched then
    stop_watching(queue, consumer)
  end
  if waits_at and is_throttled and comes then
    queue.next_us = sooner(queue.next_us, until_permit_us(queue))
  end
  if (step_index or waits_at) and not is_throttled then
    local first = math.min(step_index or #steps, waits_at or #steps)
    may_have_more[#may_have_more + 1] = queue.index .. ' ' .. first
  end
  local is_left = is_to_be_watched and not may_watch
  if step_index and (not is_throttled or is_left) or queue.has_unwatched_key or queue.has_unblocked then
    wake(queue.wake)
  else
    redis.call('DEL', queue.wake)
  end
  if queue.next_us >= 0 then
    due[#due + 1] = string.format('%d %.0f', queue.index, queue.next_us)
  end
  if queue.has_permits then
    with_permits[#with_permits + 1] = queue.index
  end
  if queue.expires_ms > 0 then
    expire(queue.expires_ms, queue.ready)
    expire(queue.expires_ms, { queue.schedule, queue.messages, queue.wake, queue.history })
    expire(queue.expires_ms, { queue.unknown, queue.base .. 'unique' })
    expire(queue.unacked_ttl_ms, { queue.base .. 'running' })
  end
end

return {
  now_us,
  missing,
  only_migrated and 1 or 0,
  table.concat(due, ' '),
  table.concat(may_have_more, ' '),
  table.concat(with_permits, ' '),
  table.concat(batch.from, ' '),
  unpack(batch.messages),
}
