-- What a take does with a fair queue (fair.lua).

-- include: fair_door
-- include: limits

-- A source (hand_out_ready.lua): the next message of a step; nil if none may be taken.
local function next_fair(queue, step_index, prefix, wanted)
  local fair, lane = queue.fair, queue.fair.lanes[step_index]
  if fair.is_counting then
    return nil
  elseif fair.state == 'off' and lane.n == 0 then
    return next_in_list(queue, step_index, prefix)
  end
  local payload = next_in_turn(fair, lane, wanted)
  if payload then
    return prefix .. payload, #prefix + 1
  end
end

-- Reads what will be written to, so that a key of a wrong type raises an error before anything is done.
local function open_fair(queue, steps, now_us, seed)
  local fair = { base = queue.base, state = queue.fair, now_us = now_us, needs_ack = queue.needs_ack }
  fair.holders, fair.seed = {}, seed % 1000003
  open_lanes(fair, steps)
  local may_come = queue.first_due_ms or #fair.strays > 0
  for index, lane in ipairs(fair.lanes) do
    local is_to_sort_in = may_come or queue.counts[index] > 0
    if is_to_sort_in or lane.n > 0 then
      expect_turns(fair, lane)
    end
    if is_to_sort_in then
      redis.call('LLEN', lane.lists)
    end
  end
  queue.fair, queue.next_ready = fair, next_fair
end

-- Sorts in. Then `counts` has what is ready.
local function enter_fair(queue, budget)
  local fair = queue.fair
  fair.budget = budget
  if fair.state == 'off' then
    free_some(fair)
    -- What was counted has to be released.
    queue.has_permits = queue.has_permits or counts_keys(fair.base)
    for index, lane in ipairs(fair.lanes) do
      queue.counts[index] = lane.n + queue.counts[index]
    end
    return
  end
  local lowest = index_of_0(fair.lanes)
  local strayed = move_strays(fair, queue.ready[lowest], budget)
  queue.counts[lowest] = queue.counts[lowest] + strayed
  read_fair_limits(fair)
  note_work(fair, ring_alarms(fair) * LIMITED)
  queue.has_permits = queue.has_permits or fair.counts
  if fair.is_limited then
    -- What waits for a worker that knows its task has its turn when it is due.
    queue.waits = nil
  end
  for index, lane in ipairs(fair.lanes) do
    rebase(fair, lane)
    lane.at_door = queue.counts[index]
    if lane.at_door > 0 then
      lane.at_door = lane.at_door - sort_in(fair, lane, queue.ready[index], budget)
    end
    queue.counts[index] = lane.n + lane.at_door
  end
end

-- For a queue that is not to be fair any more: moves messages back. Then `counts` has what may be taken.
local function leave_plain(queue)
  local fair = queue.fair
  move_back(fair, queue.ready, fair.budget)
  for index, door in ipairs(queue.ready) do
    queue.counts[index] = math.max(0, fair.lanes[index].n) + redis.call('LLEN', door)
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
  for index, lane in ipairs(fair.lanes) do
    close_lane(fair, lane)
    local may_be_taken = lane.n > 0 and not fair.is_counting
    local has_turns = may_be_taken and (lane.has_turns or redis.call('ZCARD', lane.zset) > 0)
    queue.counts[index] = lane.at_door + (has_turns and lane.n or 0)
  end
  write_counts(fair)
  local until_us
  until_us, queue.has_unwatched_key = watch_alarm(fair, consumer, may_watch)
  queue.next_us = sooner(queue.next_us, until_us)
end
