-- Moves one unacked message back to its ready list. `push` is RPUSH for the head, where it is the next to
-- be taken, and LPUSH for the tail. One that reached a callback (`delivered`) counts that delivery, and is
-- buried when it has had `delivery_limit` of them (0: never). Returns 1 if it is dead now, else 0, and how
-- many dead letters had to go for it.
local function give_back(stored, push, delivered, delivery_limit, queue_key, separator, dead_key, dead_limit)
  local step, payload = stored_step(stored), stored_payload(stored)
  if delivered then
    local count = deliveries(payload) + 1
    if delivery_limit > 0 and count >= delivery_limit then
      local reason = 'delivery limit of ' .. delivery_limit .. ' reached'
      return 1, bury(dead_key, dead_limit, count, step, reason, payload)
    end
    payload = with_deliveries(payload, count)
  end
  redis.call(push, ready_key(queue_key, separator, step), payload)
  return 0, 0
end
