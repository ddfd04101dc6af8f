-- Moves one message from an unacked hash back to its ready list. `push` is RPUSH for the head, where it is
-- the next to be taken, and LPUSH for the tail. `how` says what it has been through:
--   unseen    no callback has seen it: it goes back as it was;
--   returned  it was given back properly, which is no failure of the message: it is marked as redelivered,
--             but its count does not grow from one such return to the next;
--   failed    its consumer is gone or did not want it: that counts, and buries it when it has had
--             `delivery_limit` deliveries (0: never).
-- Returns 1 if it is dead now, else 0, and how many dead letters had to go for it.
local function give_back(
  unacked_key, tag, stored, push, how, delivery_limit, queue_key, separator, dead_key, dead_limit
)
  local start = stored_start(stored)
  local count = deliveries(stored, start)
  if how == 'failed' then
    count = count + 1
    if delivery_limit > 0 and count >= delivery_limit then
      expect_list(dead_key)
      redis.call('HDEL', unacked_key, tag)
      local reason = 'delivery limit of ' .. delivery_limit .. ' reached'
      return 1, bury(dead_key, dead_limit, count, reason, stored)
    end
  elseif how == 'returned' then
    count = math.max(1, count)
  end
  local payload = how == 'unseen' and string.sub(stored, start) or with_deliveries(stored, start, count)
  local ready = ready_key(queue_key, separator, stored_step(stored))
  expect_list(ready)
  redis.call('HDEL', unacked_key, tag)
  redis.call(push, ready, payload)
  return 0, 0
end
