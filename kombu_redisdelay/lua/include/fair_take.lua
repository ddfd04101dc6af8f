-- What a take does with a fair queue (fair.lua).

-- include: fair_sort
-- include: limits

-- A source (deliver_ready.lua): the next message of a step; nil if none may be taken.
local function next_fair(queue, step_index, prefix, wanted)
  local fair, order = queue.fair, queue.fair.orders[step_index]
  if fair.is_counting then
    return nil
  elseif fair.state == 'off' and order.n == 0 then
    return next_in_list(queue, step_index, prefix)
  end
  local payload = next_in_turn(fair, order, wanted)
  if payload then
    return prefix .. payload, #prefix + 1
  end
end

-- Reads what will be written to, so that a key of a wrong type raises an error before anything is done.
local function open_fair(queue, steps, now_us, seed)
  local fair = { base = queue.base, state = queue.fair, now_us = now_us, needs_ack = queue.needs_ack }
  fair.holders, fair.seed = {}, seed % 1000003
  open_orders(fair, steps)
  local may_come = queue.first_due_ms or #fair.unused > 0
  for index, order in ipairs(fair.orders) do
    local may_sort = may_come or queue.counts[index] > 0
    if may_sort or order.n > 0 then
      expect_turns(fair, order)
    end
    if may_sort then
      redis.call('LLEN', order.lists)
    end
  end
  queue.fair, queue.next_ready = fair, next_fair
end

-- Sorts by key. Then `counts` has what is ready.
local function enter_fair(queue, budget)
  local fair = queue.fair
  fair.budget = budget
  if fair.state == 'off' then
    free_some(fair)
    -- What was counted has to be released.
    queue.has_permits = queue.has_permits or counts_keys(fair.base)
    for index, order in ipairs(fair.orders) do
      queue.counts[index] = order.n + queue.counts[index]
    end
    return
  end
  local lowest = index_of_0(fair.orders)
  local moved = move_unused(fair, queue.ready[lowest], budget)
  queue.counts[lowest] = queue.counts[lowest] + moved
  read_fair_limits(fair)
  note_work(fair, ring_alarms(fair) * LIMITED)
  queue.has_permits = queue.has_permits or fair.counts
  if fair.is_limited then
    -- What waits for a worker that knows its task has its turn when it is due.
    queue.waits = nil
  end
  for index, order in ipairs(fair.orders) do
    rebase(fair, order)
    order.unsorted = queue.counts[index]
    if order.unsorted > 0 then
      order.unsorted = order.unsorted - sort_by_key(fair, order, queue.ready[index], budget)
    end
    queue.counts[index] = order.n + order.unsorted
  end
end

-- For a queue that is not to be fair any more: moves messages back. Then `counts` has what may be taken.
local function leave_plain(queue)
  local fair = queue.fair
  move_back(fair, queue.ready, fair.budget)
  for index, unsorted in ipairs(queue.ready) do
    queue.counts[index] = math.max(0, fair.orders[index].n) + redis.call('LLEN', unsorted)
  end
end

-- Writes what has changed. Then `counts` has what may be taken at once, and `next_us` when the consumer comes
-- for a key; `has_unwatched_key` tells that another one has to be woken for that.
local function leave_fair(queue, consumer, may_watch)
  local fair = queue.fair
  if fair.state == 'off' then
    leave_plain(queue)
    return
  end
  for index, order in ipairs(fair.orders) do
    close_order(fair, order)
    local may_be_taken = order.n > 0 and not fair.is_counting
    local has_turns = may_be_taken and (order.has_turns or redis.call('ZCARD', order.zset) > 0)
    queue.counts[index] = order.unsorted + (has_turns and order.n or 0)
  end
  write_counts(fair)
  local until_us
  until_us, queue.has_unwatched_key = watch_alarm(fair, consumer, may_watch)
  queue.next_us = sooner(queue.next_us, until_us)
end
