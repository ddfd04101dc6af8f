-- What becomes of a key when the message that holds it is no longer unacked: see unique.lua.

-- include: unique

-- Key and mode of a message that a consumer holds, in the hash `unacked_key`; nil if it has no key.
local function key_of_unacked(base, unacked_key, tag, stored, start)
  local mode, id, key = unique_of(stored, start)
  if not mode then
    return nil
  end
  local record = read_record(base, key, mode)
  local running = record.running
  local is_holder = running and running.tag == tag and unacked_key == base .. 'unacked:' .. running.consumer
  return { record = record, mode = mode, id = id, is_holder = is_holder }
end

-- The message has left for good: it was acked, or is a dead letter.
local function free_key(keyed, now_ms)
  if keyed and keyed.is_holder then
    keyed.record.running = nil
    let_go(keyed.record, now_ms)
    write_record(keyed.record)
  end
end

-- Whether the message need not go back, because its own retry is there in its place.
local function is_superseded(keyed)
  local current = keyed and keyed.is_holder and keyed.record.current
  return current and current.id == keyed.id
end

-- The message has gone back, to the ready list of its step or to the schedule, under this name: `state` is
-- that of unique.lua. It holds the key again.
local function keep_key(keyed, state, step, now_ms, member)
  if not keyed then
    return
  end
  local record = keyed.record
  if keyed.is_holder then
    record.running = nil
  end
  if not record.current and (keyed.is_holder or keyed.mode == UNTIL_TAKEN) then
    record.current = entry_at(state, step, now_ms, member)
  elseif keyed.is_holder then
    let_go(record, now_ms)
  end
  write_record(record)
end
