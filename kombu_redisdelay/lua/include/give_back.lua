-- Moves one unacked message back to its ready list. `push` is RPUSH for the head, where it is the next to
-- be taken, and LPUSH for the tail. One that reached a callback (`delivered`) counts that delivery, and is
-- buried when it has had `delivery_limit` of them (0: never).
local function give_back(stored, push, delivered, delivery_limit, queue_key, separator, dead_key)
  local step, payload = stored_step(stored), stored_payload(stored)
  if delivered then
    local count = deliveries(payload) + 1
    if delivery_limit > 0 and count >= delivery_limit then
      bury(dead_key, count, step, 'delivery limit of ' .. delivery_limit .. ' reached', payload)
      return false
    end
    payload = with_deliveries(payload, count)
  end
  redis.call(push, ready_key(queue_key, separator, step), payload)
  return true
end
