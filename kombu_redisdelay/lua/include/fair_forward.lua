-- What forward.lua does with a fair queue (fair.lua), whose consumers have no room, or which has none.

-- include: fair_sort

-- Sorts what is ready by key, or moves it back if the queue is not to be fair any more: `state` is that of
-- fair.lua, `ready_at` has the ready list of each step. Returns 1 if there may be more to do, else 0.
local function sort_or_move_back(base, state, ready_at, now_us, budget, attended)
  local fair, steps, unsorted_lists = { base = base, keys = {}, seed = now_us % 1000003 }, {}, {}
  for step, unsorted in pairs(ready_at) do
    steps[#steps + 1], unsorted_lists[#unsorted_lists + 1] = step, unsorted
  end
  open_orders(fair, steps)
  if state == 'off' then
    free_some(fair)
    move_back(fair, unsorted_lists, budget)
    if attended > 0 then
      wake(base .. 'wake')
    end
    return fair_state(base) and 1 or 0
  end
  local moved = move_unused(fair, ready_at['0'], budget)
  local sorted = moved
  for _, order in ipairs(fair.orders) do
    expect_turns(fair, order)
    sorted = sorted + sort_by_key(fair, order, ready_at[order.step], budget)
    close_order(fair, order)
  end
  if sorted > 0 then
    wake(base .. 'wake')
  end
  return (moved > 0 or budget.messages <= 0 or budget.bytes <= 0) and 1 or 0
end
