-- Gives unacked messages back. `reason` says what they have been through:
--   unseen    no callback has seen it. It goes to the head, where it is the next to be taken, as it was.
--   returned  its consumer gives it back in good order, which is no failure of the message. It goes to the
--             head and is marked as redelivered; its count does not grow from one return to the next.
--   lost      its consumer is lost, and may have held others: it is not known which one has caused that. It
--             goes to the head, which keeps the order. At the `isolated_from`-th time it goes to the tail,
--             and from then on it is isolated. So further deaths are its own: it has failed.
--   failed    its callback failed, or rejected it. The first time it goes to the tail, then it waits for
--             longer and longer: others are served before it.
-- Failures are the deliveries that failed, less those that were lost. A message with `delivery_limit` of them
-- (0: any number) becomes a dead letter.

-- Most calls have none that dies: so this is made only if there is one. What it returns adds a dead letter.
-- It comes first, and includes all for itself: what it would use of the rest costs each call.
local function for_dead_letters(queue)
  -- include: dead_letter
  local archive = archive_of_dead(queue.dead)
  return function(over)
    return add_dead_letter(archive, over, queue.dead_limit)
  end
end

-- include: arrive
-- include: brief
-- include: history
-- include: retry_wait

-- Returns how many deliveries have failed now and how many of them were lost; and where the message goes: to
-- the 'head' or the 'tail' of its ready list, to the schedule, 'later', or to the 'dead' letters. If later,
-- also after how many ms.
local function retry_verdict(stored, start, reason, queue)
  local count = deliveries(stored, start)
  local lost = math.min(losses(stored, start), count)
  if reason == 'unseen' then
    return count, lost, 'head'
  elseif reason == 'returned' then
    return math.max(1, count), lost, 'head'
  end
  count = count + 1
  if reason == 'lost' and lost < queue.isolated_from then
    return count, lost + 1, lost + 1 == queue.isolated_from and 'tail' or 'head'
  end
  local failures = count - lost
  if queue.delivery_limit > 0 and failures >= queue.delivery_limit then
    return count, lost, 'dead'
  end
  local wait = wait_before_retry_ms(failures, queue)
  return count, lost, wait > 0 and 'later' or 'tail', wait
end

-- What give_back() has done with several messages:
--   settled    how many were unacked, and are not any more
--   dead       how many of these are dead letters now, `briefs` the briefs of some (brief.lua), and `dropped`
--              how many older dead letters were dropped for them
--   now_ms     when that began
--   unnamed    pairs of a delivery tag and a message, of those that are still unacked: they must wait, or
--              are to be dead letters, and their ids were not given. The caller comes again with them
local function nothing_given_back()
  local now_ms = clock_us() / 1000
  return { now_ms = now_ms, settled = 0, dead = 0, dropped = 0, briefs = {}, unnamed = {} }
end

-- How many messages of a queue one script gives back, of so many.
local function most_given_back(queue, count)
  -- In a queue that counts keys, a message costs three times as much.
  return queue.keys and (queue.keys.are_counted and 50 or 100) or count
end

-- `id` is the name that the message gets if it must wait or is a dead letter; '' if the caller does not know
-- it. `queue` is that of leave.lua, and has dead (the index), dead_limit, delivery_limit, isolated_from (0:
-- each death is a failure), retry_wait_ms (the first wait) and delay_ms (nil: by retry_wait_ms).
-- Returns the message as it was stored, nil if it is not unacked; where it went, nil if it is still unacked;
-- and how many bytes its key counts as (unique.lua).
local function give_back(tag, id, reason, queue, done)
  local message = unacked_message(queue, tag)
  if not message then
    return nil
  end
  local stored, start, now_ms = message.stored, message.start, done.now_ms
  local count, lost, where, wait = retry_verdict(stored, start, reason, queue)
  if (where == 'later' or where == 'dead') and id == '' then
    done.unnamed[#done.unnamed + 1] = tag
    done.unnamed[#done.unnamed + 1] = stored
    return stored
  end
  local changes = { deliveries = count, lost = lost > 0 and lost }
  if reason == 'failed' then
    -- A worker knew its task.
    changes.unknown = false
  end
  done.settled = done.settled + 1
  if where ~= 'dead' and message.unique_key and unique(message).is_replaced_by_retry(message.unique_key) then
    leave(message)
    is_over(message, now_ms)
  elseif where == 'dead' then
    done.add_dead = done.add_dead or for_dead_letters(queue)
    leave(message)
    done.dead = done.dead + 1
    done.dropped = done.dropped
      + done.add_dead({
        id = id,
        tag = tag,
        failures = count,
        kind = 'delivery-limit',
        details = '{"text": "delivery limit of ' .. queue.delivery_limit .. ' reached"}',
        stored = stored,
      })
    add_brief(done.briefs, stored)
    is_over(message, now_ms)
  elseif where == 'later' then
    expect_schedule(queue.schedule, queue.messages)
    leave(message)
    changes.due = now_ms + wait
    becomes_scheduled(message, id, changes.due, with_members(stored, 1, changes), now_ms)
  else
    local payload = reason == 'unseen' and string.sub(stored, start) or with_members(stored, start, changes)
    expect_ready(message, where)
    leave(message)
    becomes_ready(message, where, payload, now_ms)
  end
  return stored, where, message.unique_key and BYTES_OF_KEY or 0
end

-- To be called when all were given back.
local function tell_of_given_back(reason, queue, done)
  if queue.keys then
    queue.keys.have_arrived()
  end
  note_given_back(queue.wake, reason, done.settled, done.dead)
  -- Also for those in the schedule: the queue may have a limited concurrency.
  if done.settled > done.dead then
    wake(queue.wake)
    expire(queue.expires_ms, { queue.wake })
  end
end
