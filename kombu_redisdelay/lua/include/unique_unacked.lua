-- What becomes of a key when the message that holds it is no longer unacked: see unique.lua.

-- include: unique

-- Key and mode of a message with a key that a consumer holds, in the hash `unacked_key`.
local function unique_key_of(base, unacked_key, tag, stored, start)
  local mode, id, key = unique_of(stored, start)
  local record = read_record(base, key, mode)
  local running = record.running
  local is_holder = running and running.tag == tag and unacked_key == base .. 'unacked:' .. running.consumer
  return { record = record, mode = mode, id = id, is_holder = is_holder }
end

-- The message has left for good: it was acked, or is a dead letter.
local function free_unique_key(unique_key, now_ms)
  if unique_key.is_holder then
    unique_key.record.running = nil
    unblock(unique_key.record, now_ms)
    write_record(unique_key.record)
  end
end

-- Whether the message need not go back, because its own retry is there in its place.
local function is_replaced_by_retry(unique_key)
  local current = unique_key.is_holder and unique_key.record.current
  return current and current.id == unique_key.id
end

-- The message has gone back, to the ready list of its step or to the schedule, under this name: `state` is
-- that of unique.lua. It holds the key again.
local function keep_unique_key(unique_key, state, step, now_ms, member)
  local record = unique_key.record
  if unique_key.is_holder then
    record.running = nil
  end
  if not record.current and (unique_key.is_holder or unique_key.mode == UNTIL_TAKEN) then
    record.current = entry_at(state, step, now_ms, member)
  elseif unique_key.is_holder then
    unblock(record, now_ms)
  end
  write_record(record)
end
