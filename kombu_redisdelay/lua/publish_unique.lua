-- Publishes a message with a key: to the schedule, or to its ready list if its time has come, unless another
-- message holds the key (include/unique.lua). What happens then depends on the mode.
--
-- KEYS[1]  ready list of the message's priority step
-- KEYS[2]  wake zset
-- KEYS[3]  schedule
-- KEYS[4]  messages
-- KEYS[5]  duplicates
-- KEYS[6]  ready list of step 0
-- KEYS[7+] the other keys of a queue that expires; or the bindings of the exchange that routed the message
-- ARGV     see below, by their names
--
-- Returns  1 if it was published, or had been published by an earlier call; 0 if there are other bindings
--          now: then it was not published; or a list of what has happened, the id of the message that holds
--          the key, and whether another message with the id of this one waits or runs, as far as the key and
--          the schedule tell (1, else 0):
--          "dropped"   it was not
--          "replaced"  it took the place of the one that waits, and has its id now
--          "replace"   nothing was done: call again with the message under this id, and this as `instead_of`;
--                      and if there is a third value, with this due time, ms since the epoch
--          "again"     nothing was done, because that one does not wait any more: begin again
--
-- Keeps: an id that was accepted does not vanish: what replaces its message has its id. With "latest", the
-- newest message runs after all others.

-- include: base
-- include: clock
-- include: wake
-- include: bindings

local
  payload, step,
  -- Message id. That of the message itself, also if the payload has the one of `instead_of`.
  id, key, mode,
  -- Between a queue's name and a priority step.
  separator,
  -- What few messages have, as one text: see below. It is empty for all others, because each argument costs
  -- time.
  rare = unpack(ARGV)
local FIRST_BINDING = 8

local
  -- x-expires of the queue, ms (0: none).
  expires_ms,
  -- Due time, ms since the epoch, with a fraction (0: none).
  due_ms,
  -- Delay, ms from now, with a fraction; the later of the two times counts.
  delay_ms,
  -- "1": a task publishes itself again, as retry() and replace() do. It is never dropped.
  is_continued,
  -- "1": it may have been published by an earlier call, whose reply was lost.
  is_repeated,
  -- With "latest": for how long after its first publish newer messages may postpone it, ms (0: for any time).
  -- If the first was to be due later, until then.
  at_most_ms,
  -- When it expires, ms since the epoch (0: never). It is not run after that.
  gone_ms,
  -- The name of the message that it is to replace, whose id it has ("": none).
  instead_of = '0', 0, 0, '0', '0', '0', '0', ''
if rare ~= '' then
  local RARE = '^' .. string.rep('(%S+) ', 7) .. '(.*)$'
  expires_ms, due_ms, delay_ms, is_continued, is_repeated, at_most_ms, gone_ms, instead_of =
    string.match(rare, RARE)
end

if not still_bound(KEYS[#KEYS], FIRST_BINDING) then
  return 0
end
local now_ms = clock_us() / 1000
local base = base_of(KEYS[2])

-- Most messages have nothing rare, so they are due now, and most keys are free. What follows below takes
-- three times as long.
if rare == '' and (mode == 'w' or redis.pcall('HEXISTS', base .. 'running', key) == 0) then
  local entry = string.format('r%s %d 0 %s', step, now_ms, id)
  if redis.pcall('HSETNX', base .. 'unique', key, entry) == 1 then
    redis.call('LPUSH', KEYS[1], payload)
    wake(KEYS[2])
    return 1
  end
end

-- include: expect
-- include: expire
-- include: schedule
-- include: history
-- include: unique

due_ms, gone_ms = math.max(tonumber(due_ms), now_ms + tonumber(delay_ms)), tonumber(gone_ms)
local stored = step .. ':' .. payload
local record = read_record(base, key, mode)
prune(record, now_ms, function(of_step)
  return ready_key(KEYS[6], separator, of_step)
end)
resolve_running(record)

-- Puts it where its time says, or into the schedule as one that is blocked. It holds the key as `slot` says.
local function put(slot, is_blocked)
  local entry
  if is_blocked or due_ms > now_ms then
    expect_schedule(KEYS[3], KEYS[4])
    redis.call('ZCARD', KEYS[5])
  end
  local state = is_continued == '1' and 'a' or 's'
  local since_ms = now_ms
  if due_ms > now_ms and tonumber(at_most_ms) > 0 then
    -- Newer messages may postpone it until since_ms + at_most_ms. They never hasten it.
    since_ms = math.max(now_ms, due_ms - at_most_ms)
  end
  if is_blocked then
    local member = store_under_id(KEYS[4], KEYS[5], id, stored)
    redis.call('ZADD', KEYS[3], '+inf', member)
    entry = entry_at(state, step, since_ms, member, gone_ms)
  elseif due_ms > now_ms then
    local member = schedule(KEYS[3], KEYS[4], KEYS[5], KEYS[2], id, due_ms, stored)
    entry = entry_at(state, step, since_ms, member, gone_ms)
  else
    redis.call('LPUSH', KEYS[1], payload)
    wake(KEYS[2])
    entry = entry_at('r', step, now_ms, id, gone_ms)
  end
  if slot then
    record[slot] = entry
  end
  return 1
end

local function is_mine(entry)
  return entry and entry.id == id
end

local function has_namesake()
  local is_known = is_mine(record.running) or is_mine(record.current) or is_mine(record.next)
  return (is_known or redis.pcall('HEXISTS', KEYS[4], id) == 1) and 1 or 0
end

-- Puts it in the place of `entry`, which is scheduled. If it has to be due at `at_latest_ms`, the message
-- itself must say so: workers read that.
local function replace(entry, is_blocked, at_latest_ms)
  if instead_of ~= entry.member and (id ~= entry.id or at_latest_ms) then
    return { 'replace', entry.member, at_latest_ms and string.format('%.0f', at_latest_ms) }
  end
  expect_list(KEYS[1], 'LPUSH')
  expect_schedule(KEYS[3], KEYS[4])
  redis.call('HSET', KEYS[4], entry.member, stored)
  entry.step, entry.expires_ms = step, gone_ms
  if not is_blocked and due_ms <= now_ms then
    unschedule(KEYS[3], KEYS[4], KEYS[5], entry.member)
    redis.call('LPUSH', KEYS[1], payload)
    record.next = nil
    record.current = entry_at('r', step, now_ms, entry.id, gone_ms)
    wake(KEYS[2])
  else
    redis.call('ZADD', KEYS[3], is_blocked and '+inf' or due_ms, entry.member)
    if redis.call('ZRANGE', KEYS[3], 0, 0)[1] == entry.member then
      wake(KEYS[2])
    end
  end
  note(KEYS[2], 'replaced', 1)
  return { 'replaced', entry.id, has_namesake() }
end

local function drop(holder)
  note(KEYS[2], 'dropped', 1)
  return { 'dropped', holder.id, has_namesake() }
end

local function continue()
  local is_own = is_mine(record.running) and not record.current
  local is_free = not (record.running or record.current or record.next)
  return put((is_own or is_free) and 'current', is_own and due_ms <= now_ms)
end

-- "waiting" and "done". A retry is not replaced: it must wait after its failure.
local function publish_one()
  local current = record.current
  if not current and not record.running then
    return put('current')
  end
  local score = current and not record.running and current.state == 's' and score_of(base, current)
  if score and score ~= BLOCKED and due_ms < tonumber(score) then
    return replace(current)
  end
  return drop(current or record.running)
end

local function publish_latest()
  local is_busy = record.running or record.current
  if record.next then
    local at_latest_ms = tonumber(at_most_ms) > 0 and record.next.since_ms + at_most_ms
    if not at_latest_ms or at_latest_ms >= due_ms then
      at_latest_ms = nil
    elseif instead_of ~= '' then
      -- This is the second call: the message says so already.
      due_ms, at_latest_ms = at_latest_ms, nil
    end
    return replace(record.next, is_busy and due_ms <= now_ms, at_latest_ms)
  elseif is_busy then
    return put('next', due_ms <= now_ms)
  end
  return put(due_ms > now_ms and 'next' or 'current')
end

local holder, reply = mode == 'l' and record.next or mode ~= 'l' and record.current
if instead_of ~= '' then
  if not holder or holder.member ~= instead_of then
    return { 'again', '' }
  end
elseif is_repeated == '1' and (is_mine(record.current) or is_mine(record.next)) then
  reply = 1
elseif is_continued == '1' then
  reply = continue()
elseif is_repeated == '1' and is_mine(record.running) then
  reply = 1
end
reply = reply or mode == 'l' and publish_latest() or publish_one()
write_record(record)
expire(tonumber(expires_ms), KEYS)
return reply
