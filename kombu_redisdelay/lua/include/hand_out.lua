-- Hands messages out to a consumer. `batch` is what one take hands out:
--   limit, byte_limit        how many messages and bytes at most
--   count, bytes             how many so far; each key counts as some bytes (unique.lua)
--   first_tag                delivery tag of the first message; the others follow it
--   consumer, now_ms         the consumer that gets them, and the time
--   isolated_from            how many times lost a message is the last of a batch (0: never)
--   fair                     what is done with fair queues (fair_take.lua), if there is one
--   messages, from           the messages, as they are stored, and the index of the queue of each
-- A `queue` has an index, the keys unacked, consumers and history, `needs_ack`, `unacked_ttl_ms` (time to
-- live of what a consumer holds of a queue that expires, else 0), `lease_end_ms`, `has_unique` (whether a key
-- is held, unique.lua), what limits.lua allows, `fair` if it is a fair queue (fair_take.lua), `taken`: the
-- fields and values that hold() writes, `to_free`: the messages whose keys free_keys() frees, and
-- `has_let_go`: whether a message is due now that waited for one of these keys.

-- include: expire
-- include: history
-- include: limits
-- include: schedule
-- include: unique

-- The delivery tag of the message after `n` others. As text: what Redis does to a number that a script gives
-- to a command costs half as much as the command.
local function nth_tag(batch, n)
  return string.format('%d', batch.first_tag + n)
end

-- `start` is where the payload begins in `stored`.
local function hand_out(batch, queue, stored, start)
  local fields, tag = queue.taken, nth_tag(batch, batch.count)
  if queue.fair then
    batch.fair.count(queue.fair, batch.consumer, tag)
  end
  fields[#fields + 1] = tag
  fields[#fields + 1] = stored
  count_against(queue)
  batch.count, batch.bytes = batch.count + 1, batch.bytes + #stored
  batch.from[batch.count] = queue.index
  batch.messages[batch.count] = stored
  local isolated_from = batch.isolated_from
  if queue.needs_ack and isolated_from > 0 and losses(stored, start) >= isolated_from then
    batch.limit = batch.count
  end
end

-- With "waiting", a message never waits for its key, which is free when the message is taken. So takes_key()
-- only notes the message, and this frees the keys of all of them: two commands for a take, and not for each.
-- A message of the mode "latest" may wait for one of them: then `has_let_go` is true.
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
        queue.has_let_go = let_go(record, now_ms) or queue.has_let_go
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
local function takes_wanted_by_none(batch, queue, id, key)
  local hash = queue.base .. 'unique'
  local found = text_in(hash, key)
  if string.sub(found, -#id - 1) ~= ' ' .. id or string.find(found, '\30', 1, true) then
    return nil
  end
  if queue.needs_ack then
    local running = { consumer = batch.consumer, tag = nth_tag(batch, batch.count) }
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
local function takes_key(batch, queue, stored, start)
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
  if takes_wanted_by_none(batch, queue, id, key) then
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
    record.running = { consumer = batch.consumer, tag = nth_tag(batch, batch.count) }
  end
  if is_current then
    record.current = entry
  else
    record.next = entry
  end
  write_record(record)
  return not is_busy
end

-- Hands out the same messages as an earlier call with the same tags, whose reply was lost. Returns whether
-- there was such a call. If so, nothing else must be handed out.
local function hand_out_again(batch, queues)
  local n, found = 0, true
  while found do
    local tag = nth_tag(batch, n)
    found = false
    for _, queue in ipairs(queues) do
      local stored = queue.needs_ack and redis.call('HGET', queue.unacked, tag)
      if stored then
        found = true
        batch.bytes = batch.bytes + #stored
        batch.from[#batch.from + 1] = queue.index
        batch.messages[#batch.messages + 1] = stored
      end
    end
    n = n + 1
  end
  return #batch.messages > 0
end

-- Makes the consumer hold what was handed out to it, and frees the keys that this does not need. Renews its
-- lease if less than `fresh_ms` are left.
local function hold(queues, consumer, now_ms, lease_ms, fresh_ms)
  for _, queue in ipairs(queues) do
    free_keys(queue, now_ms)
    if queue.needs_ack and #queue.taken > 0 then
      redis.call('HSET', queue.unacked, unpack(queue.taken))
      note_delivered(queue.history, #queue.taken / 2)
      if queue.lease_end_ms < now_ms + fresh_ms then
        redis.call('ZADD', queue.consumers, now_ms + lease_ms, consumer)
      end
      if queue.unacked_ttl_ms > 0 then
        expire(queue.unacked_ttl_ms, { queue.unacked, queue.consumers })
      end
    end
  end
end
