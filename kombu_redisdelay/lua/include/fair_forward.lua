-- What forward.lua does with a fair queue (fair.lua), whose consumers have no room, or which has none.

-- include: fair_door

-- Sorts in what is ready, or moves it back if the queue is not to be fair any more: `state` is that of
-- fair.lua, `ready_at` has the ready list of each step. Returns 1 if there may be more to do, else 0.
local function sort_or_move_back(base, state, ready_at, now_us, budget, attended)
  local fair, steps, doors = { base = base, keys = {}, seed = now_us % 1000003 }, {}, {}
  for step, door in pairs(ready_at) do
    steps[#steps + 1], doors[#doors + 1] = step, door
  end
  open_lanes(fair, steps)
  if state == 'off' then
    free_some(fair)
    move_back(fair, doors, budget)
    if attended > 0 then
      wake(base .. 'wake')
    end
    return fair_state(base) and 1 or 0
  end
  local strayed = move_strays(fair, ready_at['0'], budget)
  local sorted = strayed
  for _, lane in ipairs(fair.lanes) do
    expect_turns(fair, lane)
    sorted = sorted + sort_in(fair, lane, ready_at[lane.step], budget)
    close_lane(fair, lane)
  end
  if sorted > 0 then
    wake(base .. 'wake')
  end
  return (strayed > 0 or budget.messages <= 0 or budget.bytes <= 0) and 1 or 0
end
