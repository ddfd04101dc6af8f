-- Takes out messages that were kept (dead letters, failed tasks): for good, or back to the tails of their
-- ready lists, as if they had never been delivered. For scripts with KEYS[2], the ready list of step 0,
-- KEYS[3], the wake zset, ARGV[1], "requeue" or "drop", and ARGV[2], the separator.

-- include: clock
-- include: expect
-- include: history
-- include: unique

local function ready_list_of(step)
  return ready_key(KEYS[2], ARGV[2], step)
end

-- The record of a message's key, nil if it has none; the id of the message; and the message that holds the
-- key, nil if none does.
local function key_and_holder(base, stored, start)
  local mode, id, key = unique_of(stored, start)
  if not mode then
    return nil
  end
  local record = read_record(base, key, mode)
  heal(record, clock_ms(), ready_list_of)
  identify(record)
  return record, id, record.running or record.current or record.next
end

-- The message begins at `start` in `stored`: each copy of 1 MiB takes a millisecond. `remove` takes it from
-- where it is kept, calls its argument at once if it was there, and returns 1 if it was, else 0. Returns the
-- same, or the id of the message that holds its key: then nothing was done.
local function requeue(base, step, stored, start, remove)
  local ready = ready_list_of(step)
  expect_list(ready, 'LPUSH')
  local record, id, holder = key_and_holder(base, stored, start)
  if holder then
    return holder.id
  end
  local ours = { deliveries = false, lost = false, due = clock_ms(), unknown = false }
  local payload = with_members(stored, start, ours)
  local was_there = remove(function()
    redis.call('LPUSH', ready, payload)
  end)
  if was_there == 1 and record then
    record.current = entry_at('r', step, clock_ms(), id)
    write_record(record)
  end
  return was_there
end

local function do_nothing() end

local reply, requeued = {}, 0

-- Does what ARGV[1] says, "requeue" or "drop", and notes for the reply what `requeue` would return.
local function take_out(base, step, stored, start, remove)
  local is_requeued = ARGV[1] == 'requeue'
  local done = is_requeued and requeue(base, step, stored, start, remove) or remove(do_nothing)
  if is_requeued and done == 1 then
    requeued = requeued + 1
  end
  reply[#reply + 1] = done
end

-- Notes for the reply that one was not there.
local function was_not_there()
  reply[#reply + 1] = 0
end

-- To be called at the end. Returns the reply.
local function taken_out()
  if requeued > 0 then
    note(KEYS[3], 'other', requeued)
    wake(KEYS[3])
  end
  return reply
end
