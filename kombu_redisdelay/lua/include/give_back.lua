-- Gives unacked messages back. `how` says what they have been through:
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

-- include: brief
-- include: dead
-- include: expect
-- include: expire
-- include: fair_key
-- include: fair_unacked
-- include: history
-- include: retry_wait
-- include: schedule
-- include: unique_unacked

-- Returns how many deliveries have failed now and how many of them were lost; and where the message goes: to
-- the 'head' or the 'tail' of its ready list, to the schedule, 'later', or to the 'dead' letters. If later,
-- also after how many ms.
local function judge(stored, start, how, queue)
  local count = deliveries(stored, start)
  local lost = math.min(losses(stored, start), count)
  if how == 'unseen' then
    return count, lost, 'head'
  elseif how == 'returned' then
    return math.max(1, count), lost, 'head'
  end
  count = count + 1
  if how == 'lost' and lost < queue.isolated_from then
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
--   unnamed    pairs of a delivery tag and a message, of those that are still unacked: they must wait, and
--              the name for the schedule was not given. The caller comes again with it
--   had_messages   keys of a fair queue that had messages (fair.lua)
local function nothing_given_back()
  local now_ms = clock_us() / 1000
  return { now_ms = now_ms, settled = 0, dead = 0, dropped = 0, briefs = {}, unnamed = {}, had_messages = {} }
end

-- Finds out whether the queue is fair (fair.lua), and whether its messages are counted by key
-- (fair_unacked.lua).
local function read_fairness(queue)
  local base = base_of(queue.wake)
  queue.base = base
  -- For most queues, this is all.
  if redis.call('EXISTS', base .. 'control', base .. 'unacked-keys') > 0 then
    queue.fair, queue.counts_keys = fair_state(base), counts_keys(base)
  end
end

-- To the head of its ready list. In a fair queue, that is the list of its key.
local function put_at_head(queue, ready, step, payload, done)
  if queue.fair ~= 'on' then
    redis.call('RPUSH', ready, payload)
  else
    local key, keyed = key_and_payload(payload)
    put_first(queue.base, step, key, keyed, done.had_messages)
  end
end

-- `id` is the name that the message gets in the schedule if it must wait; '' if the caller does not know it.
-- `queue` has the keys unacked, ready (the list of step 0), wake, dead, schedule, messages and duplicates;
-- base, fair and counts_keys of read_fairness(); separator, dead_limit, delivery_limit, isolated_from (0:
-- each death is a failure), retry_wait_ms (the first wait), delay_ms (nil: by retry_wait_ms) and expires_ms.
-- Returns the message as it was stored, nil if it is not unacked; where it went, nil if it is still unacked;
-- and how many bytes its key counts as (unique.lua).
local function give_back(tag, id, how, queue, done)
  local stored = redis.call('HGET', queue.unacked, tag)
  if not stored then
    return nil
  end
  local start = stored_start(stored)
  local count, lost, where, wait = judge(stored, start, how, queue)
  if where == 'later' and id == '' then
    done.unnamed[#done.unnamed + 1] = tag
    done.unnamed[#done.unnamed + 1] = stored
    return stored
  end
  local changes = { deliveries = count, lost = lost > 0 and lost }
  if how == 'failed' then
    -- A worker knew its task.
    changes.unknown = false
  end
  done.settled = done.settled + 1
  local now_ms, step = done.now_ms, stored_step(stored)
  local keyed = key_of_unacked(queue.base, queue.unacked, tag, stored, start)
  if where ~= 'dead' and is_superseded(keyed) then
    redis.call('HDEL', queue.unacked, tag)
    free_key(keyed, now_ms)
  elseif where == 'dead' then
    expect_list(queue.dead, 'LPUSH')
    redis.call('HDEL', queue.unacked, tag)
    local reason = 'delivery limit of ' .. queue.delivery_limit .. ' reached'
    done.dead = done.dead + 1
    done.dropped = done.dropped + add_dead_letter(queue.dead, queue.dead_limit, count, reason, stored)
    add_brief(done.briefs, stored)
    free_key(keyed, now_ms)
  elseif where == 'later' then
    expect_schedule(queue.schedule, queue.messages)
    redis.call('HDEL', queue.unacked, tag)
    changes.due = now_ms + wait
    local waiting = with_members(stored, 1, changes)
    local member =
      schedule(queue.schedule, queue.messages, queue.duplicates, queue.wake, id, changes.due, waiting)
    keep_key(keyed, 'a', step, now_ms, member)
    expire(queue.expires_ms, { queue.schedule, queue.messages, queue.wake, queue.duplicates })
  else
    local ready = ready_key(queue.ready, queue.separator, step)
    local payload = how == 'unseen' and string.sub(stored, start) or with_members(stored, start, changes)
    local push = where == 'head' and 'RPUSH' or 'LPUSH'
    expect_list(ready, push)
    if where == 'head' and queue.fair == 'on' then
      expect_right(push, queue.base .. step .. ':', '')
    end
    redis.call('HDEL', queue.unacked, tag)
    if where == 'head' then
      put_at_head(queue, ready, step, payload, done)
    else
      redis.call('LPUSH', ready, payload)
    end
    keep_key(keyed, 'r', step, now_ms, keyed and keyed.id)
    expire(queue.expires_ms, { ready })
  end
  if queue.counts_keys then
    release_key(queue.base, queue.unacked, tag)
  end
  return stored, where, keyed and BYTES_OF_KEY or 0
end

-- To be called when all were given back.
local function tell_of_given_back(how, queue, done)
  turns_of_first(queue.base, done.had_messages)
  note_given_back(queue.wake, how, done.settled, done.dead)
  -- Also for those in the schedule: the queue may have a limited concurrency.
  if done.settled > done.dead then
    wake(queue.wake)
    expire(queue.expires_ms, { queue.wake })
  end
end
