-- Moves one message from an unacked hash back to its ready list. `how` says what it has been through:
--   unseen    no callback has seen it. It goes to the head, where it is the next to be taken, as it was.
--   returned  its consumer gives it back in good order, which is no failure of the message. It goes to the
--             head and is marked as redelivered; its count does not grow from one return to the next.
--   lost      its consumer is gone, and nobody knows which message has caused that. It counts as failed. It
--             goes to the head, which keeps the order; from `suspect_from` failures on it goes to the tail.
--   failed    its callback failed, or rejected it. It goes to the tail: others are served before it.
-- A message that has failed `delivery_limit` times (0: any number) becomes a dead letter.
-- `queue` holds the ready list of step 0 as `ready`, `separator`, `dead`, `dead_limit`, `delivery_limit`,
-- `suspect_from` (0: never) and `expires_ms`.
-- Returns 1 if it is a dead letter now, else 0, and how many older dead letters were dropped for it.
local function give_back(unacked_key, tag, stored, how, queue)
  local start = stored_start(stored)
  local count, push = deliveries(stored, start), 'RPUSH'
  if how == 'failed' or how == 'lost' then
    count = count + 1
    if queue.delivery_limit > 0 and count >= queue.delivery_limit then
      expect_list(queue.dead)
      redis.call('HDEL', unacked_key, tag)
      local reason = 'delivery limit of ' .. queue.delivery_limit .. ' reached'
      return 1, bury(queue.dead, queue.dead_limit, count, reason, stored)
    end
    if how == 'failed' or (queue.suspect_from > 0 and count >= queue.suspect_from) then
      push = 'LPUSH'
    end
  elseif how == 'returned' then
    count = math.max(1, count)
  end
  local unchanged = how == 'unseen'
  local changes = { deliveries = count }
  local payload = unchanged and string.sub(stored, start) or with_members(stored, start, changes)
  local ready = ready_key(queue.ready, queue.separator, stored_step(stored))
  expect_list(ready)
  redis.call('HDEL', unacked_key, tag)
  redis.call(push, ready, payload)
  expire(queue.expires_ms, { ready })
  return 0, 0
end
