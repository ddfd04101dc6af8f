-- What a take does with unique keys (unique.lua). `batch` and `queue` are those of deliver.lua, `tag` is the
-- delivery tag that the message gets.

-- include: schedule
-- include: unique

-- With "waiting", a message never waits for its key, which is free when the message is taken. So takes_key()
-- only notes the message, and this frees the keys of all of them: two commands for a take, and not for each.
-- A message of the mode "latest" may wait for one of them: then `has_unblocked` is true.
local function free_keys(queue, now_ms)
  local noted, hash = queue.to_free, queue.base .. 'unique'
  if not noted then
    return
  end
  queue.to_free = nil
  local found, freed = redis.pcall('HMGET', hash, unpack(noted.keys)), {}
  for i, id in ipairs(noted.ids) do
    local key, text = noted.keys[i], found[i] or ''
    local is_last = string.find(text, id, -#id, true) and string.sub(text, -#id - 1, -#id - 1) == ' '
    if is_last and not string.find(text, '\30', 1, true) then
      -- No other message wants the key.
      freed[#freed + 1] = key
    elseif string.find(text, ' ' .. id, 1, true) then
      local record = record_of(queue.base, key, text, text_in(queue.base .. 'running', key))
      if record.current and record.current.id == id then
        record.current = nil
        queue.has_unblocked = unblock(record, now_ms) or queue.has_unblocked
        write_record(record)
      end
    end
  end
  if #freed > 0 then
    redis.call('HDEL', hash, unpack(freed))
  end
end

-- The usual case with "done" and "latest": no other message wants the key of this one. Notes its new holder
-- without reading the whole record. Returns nil if it may be another case.
local function takes_wanted_by_none(batch, queue, id, key, tag)
  local hash = queue.base .. 'unique'
  local found = text_in(hash, key)
  if string.sub(found, -#id - 1) ~= ' ' .. id or string.find(found, '\30', 1, true) then
    return nil
  end
  if queue.needs_ack then
    local running = { consumer = batch.consumer, tag = tag }
    if redis.pcall('HSETNX', queue.base .. 'running', key, running_text(running)) ~= 1 then
      return nil
    end
  end
  redis.call('HDEL', hash, key)
  return true
end

-- For a message that leaves its ready list, or the schedule, to be handed out next: notes the holder of its
-- key.
-- Returns false if the message has to wait for its key. Then it is blocked.
local function takes_key(batch, queue, stored, start, tag)
  local mode, id, key = unique_of(stored, start)
  if not mode then
    return true
  end
  batch.bytes = batch.bytes + BYTES_OF_KEY
  if mode == UNTIL_TAKEN then
    local noted = queue.to_free or { keys = {}, ids = {} }
    noted.keys[#noted.keys + 1], noted.ids[#noted.ids + 1] = key, id
    queue.to_free = noted
    return true
  end
  -- Its key may be one of those.
  free_keys(queue, batch.now_ms)
  if takes_wanted_by_none(batch, queue, id, key, tag) then
    return true
  end
  local record = read_record(queue.base, key, mode)
  local is_current = record.current and record.current.id == id
  if not is_current and not (record.next and record.next.id == id) then
    return true
  end
  local is_running = record.running and is_unacked(queue.base, record.running)
  local is_busy = is_running or not is_current and record.current
  local entry
  if is_busy then
    local member = store_under_id(queue.messages, queue.base .. 'duplicates', id, stored)
    redis.call('ZADD', queue.schedule, '+inf', member)
    entry = entry_at('a', stored_step(stored), batch.now_ms, member)
  elseif queue.needs_ack then
    record.running = { consumer = batch.consumer, tag = tag }
  end
  if is_current then
    record.current = entry
  else
    record.next = entry
  end
  write_record(record)
  return not is_busy
end
