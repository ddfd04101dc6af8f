-- What becomes of a key when the message that holds it is no longer unacked: see unique.lua.

-- Key and mode of a message that a consumer holds, in the hash `unacked_key`; nil if it has no key.
local function key_held(base, unacked_key, tag, stored, start)
  local mode, id, key = unique_of(stored, start)
  if not mode then
    return nil
  end
  local record = read_record(base, key)
  local running = record.running
  local is_holder = running and running.tag == tag and unacked_key == base .. 'unacked:' .. running.consumer
  return { record = record, mode = mode, id = id, is_holder = is_holder }
end

-- The message has left for good: it was acked, or is a dead letter.
local function free_key(held, now_ms)
  if held and held.is_holder then
    held.record.running = nil
    let_go(held.record, now_ms)
    write_record(held.record)
  end
end

-- Whether the message need not go back, because its own retry is there in its place.
local function is_superseded(held)
  local current = held and held.is_holder and held.record.current
  return current and current.id == held.id
end

-- The message has gone back, to the ready list of its step or to the schedule, under this name: `place` is
-- that of unique.lua. It holds the key again.
local function keep_key(held, place, step, now_ms, member)
  if not held then
    return
  end
  local record = held.record
  if held.is_holder then
    record.running = nil
  end
  if not record.current and (held.is_holder or held.mode == UNTIL_TAKEN) then
    record.current = entry_at(place, step, now_ms, member)
  elseif held.is_holder then
    let_go(record, now_ms)
  end
  write_record(record)
end
