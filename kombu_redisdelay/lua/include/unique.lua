-- One task for each key. A message with a key has the member redisdelay-unique (members.lua): its mode, its
-- id and the key. A mode is a letter: w "waiting", d "done", l "latest" (broker/unique.py has the meanings).
--
-- The hash `unique` has for each key the message that holds it, `current`, and with "latest" also the one
-- that comes after it, `next`. Each is
--   <state><priority step> <since when, ms> <when it expires, ms> <name>
-- The state is r: in the ready list of the step, since that time; s: in the schedule under that name, where
-- its publish has put it; or a: in the schedule again. It is a retry, or it was ready or taken before. Such a
-- message may have begun, so a newer one never takes its place: of `current`, only s is replaced. No message
-- becomes s again, so nothing needs to know of one that is ready or taken what it was before.
-- With s and a, the time is when the message took the key, or what counts as this for how long it may be
-- postponed (publish_unique.lua). A message that has expired holds no key, because Celery does not run it; 0
-- is never. \30 stands between `current` and `next`.
-- The hash `running` has for each key the message that a consumer holds, with "done" and "latest":
--   <consumer> \30 <delivery tag>
-- The message itself tells its id.
--
-- A message that waits for its key is *blocked*: it is scheduled with an infinite due time. Only a message
-- that holds its key matters. Any other one is treated as if it had no key. So no key keeps a message for
-- ever, and a key whose message is gone is free. What another program did to these hashes is ignored.

-- include: unique_member
-- include: wake

local UNTIL_TAKEN = 'w'
local BLOCKED = 'inf'
-- A short list is read to see whether a message is still in it, once that has waited for a moment.
local SEEN_AFTER_MS, MOST_SEEN, BYTES_SEEN = 1000, 50, 131072
-- Of a longer one: messages are taken in the order in which they became ready, except those that came back.
-- If the next one to be taken became ready this much later than a message, that message was taken, and no
-- script has noted it. The time of the next one is by the clock of its publisher, which may be minutes ahead.
local PASSED_MS = 600000

-- Whether any key is held in the queue. `base` is what its keys begin with (queue.lua).
local function has_unique(base)
  return redis.call('EXISTS', base .. 'unique', base .. 'running') > 0
end

local function entry_at(state, step, since_ms, member, expires_ms)
  -- A duplicate has a name that begins with its id (duplicates.lua).
  local id = string.match(member, '^[^\31]*')
  return {
    state = state,
    step = step,
    since_ms = math.floor(since_ms),
    expires_ms = expires_ms or 0,
    member = member,
    id = id,
  }
end

local function read_entry(text)
  local state, step, since_ms, expires_ms, member = string.match(text, '^([rsa])(%d+) (%d+) (%d+) (.+)$')
  return state and entry_at(state, step, tonumber(since_ms), member, tonumber(expires_ms))
end

local function entry_text(entry)
  if not entry then
    return ''
  end
  local times = string.format(' %.0f %.0f ', entry.since_ms, entry.expires_ms)
  return entry.state .. entry.step .. times .. entry.member
end

local function record_text(record)
  local text = entry_text(record.current)
  return record.next and text .. '\30' .. entry_text(record.next) or text
end

local function running_text(running)
  return running and running.consumer .. '\30' .. running.tag or ''
end

local function text_in(hash, key)
  local text = redis.pcall('HGET', hash, key)
  return type(text) == 'string' and text or ''
end

-- Who holds a key: `current`, `next` and `running`, each nil if there is none. `found` and `running` are what
-- the two hashes have for it, '' if they have nothing.
local function record_of(base, key, found, running)
  local current, behind = string.match(found, '^([^\30]*)\30?(.*)$')
  local consumer, tag = string.match(running, '^([^\30]*)\30([^\30]*)$')
  return {
    base = base,
    key = key,
    current = read_entry(current),
    next = read_entry(behind),
    running = consumer and { consumer = consumer, tag = tag },
    found = found,
    found_running = running,
  }
end

-- The same, read from the hashes. With the mode "waiting", it does not matter what runs, so this is not read.
local function read_record(base, key, mode)
  local running = mode ~= UNTIL_TAKEN and text_in(base .. 'running', key) or ''
  return record_of(base, key, text_in(base .. 'unique', key), running)
end

local function write_field(hash, key, text, found)
  if text == found then
    return
  elseif text == '' then
    redis.pcall('HDEL', hash, key)
  else
    redis.pcall('HSET', hash, key, text)
  end
end

local function write_record(record)
  write_field(record.base .. 'unique', record.key, record_text(record), record.found)
  write_field(record.base .. 'running', record.key, running_text(record.running), record.found_running)
end

local function is_unacked(base, running)
  return redis.call('HEXISTS', base .. 'unacked:' .. running.consumer, running.tag) == 1
end

local function score_of(base, entry)
  return redis.call('ZSCORE', base .. 'schedule', entry.member)
end

-- What was read of ready lists. Scripts that ask for this only add to them, and what they add is known.
local seen_lists = {}

-- Ids of the messages with keys in a short list; nil if it is longer.
local function ids_in(list)
  local length = redis.call('LLEN', list)
  if length > MOST_SEEN then
    return nil
  end
  local ids, first, bytes = {}, 0, 0
  while first < length do
    -- The first ones tell how large they are.
    local some = redis.call('LRANGE', list, first, 2 * first)
    for _, payload in ipairs(some) do
      local _, id = unique_of(payload, 1)
      ids[id or ''] = true
      bytes = bytes + #payload
    end
    first = first + #some
    if bytes > BYTES_SEEN and first < length then
      return nil
    end
  end
  return ids
end

-- The message that is to be taken next from a ready list: `id`, and when it became ready (nil: it does not
-- say). And the `ids` in the list; false: it was not read. Nil if the list is empty.
local function see_list(list, now_ms)
  local seen = seen_lists[list]
  local head = not seen and redis.call('LINDEX', list, '-1')
  if head then
    local _, id = unique_of(head, 1)
    local due_ms = tonumber(members_of(head, 1).due)
    -- A publisher whose clock is ahead writes a time that has not come: it is ready now.
    seen = { id = id, ready_ms = due_ms and math.min(now_ms, due_ms), ids = false }
    seen_lists[list] = seen
  end
  return seen
end

-- Whether a message is in a ready list, as far as can be told.
local function is_in_list(entry, list, now_ms)
  local seen = see_list(list, now_ms)
  if not seen or seen.id == entry.id then
    return seen ~= nil
  end
  local waits_ms = now_ms - entry.since_ms
  if waits_ms > SEEN_AFTER_MS then
    if seen.ids == false then
      seen.ids = ids_in(list)
    end
    if seen.ids then
      return seen.ids[entry.id]
    end
  end
  if not seen.ready_ms then
    return waits_ms <= PASSED_MS
  end
  return seen.ready_ms <= entry.since_ms + PASSED_MS
end

-- `list_of` gives the ready list of a step. `has_passed`, if there is one, tells whether all lists of a fair
-- queue are past a message.
local function is_there(base, entry, now_ms, list_of, has_passed)
  if entry.expires_ms > 0 and entry.expires_ms <= now_ms then
    return false
  elseif entry.state ~= 'r' then
    -- Its due time may have been lost, and comes back (mend_schedule.lua).
    return redis.call('HEXISTS', base .. 'messages', entry.member) == 1
  elseif entry.since_ms == math.floor(now_ms) then
    -- The script that has noted it may not have put it there yet.
    return true
  end
  -- In a fair queue (fair.lua), it may be in the list of any key.
  return is_in_list(entry, list_of(entry.step), now_ms)
    or type(redis.pcall('HGET', base .. 'fair', 'n:' .. entry.step)) == 'string'
      and not (has_passed and has_passed(entry))
end

-- Forgets the messages of a record that are gone: a program that does not know keys has taken, removed or
-- purged them. In doubt they are gone, which costs one more run. Otherwise, a message would be dropped for
-- one that never runs. `has_passed` is that of is_there().
local function prune(record, now_ms, list_of, has_passed)
  local base = record.base
  if record.running and not is_unacked(base, record.running) then
    record.running = nil
  end
  if record.current and not is_there(base, record.current, now_ms, list_of, has_passed) then
    record.current = nil
  end
  if record.next and not is_there(base, record.next, now_ms, list_of, has_passed) then
    record.next = nil
  end
end

-- To be called for a pruned record whose holder is to be named: reads the id of the message that runs. If
-- that is a message without this key, nothing runs.
local function resolve_running(record)
  local running = record.running
  if running then
    local stored = redis.call('HGET', record.base .. 'unacked:' .. running.consumer, running.tag)
    local _, id, key = unique_of(stored, stored_start(stored))
    running.id = id
    record.running = key == record.key and running or nil
  end
end

-- If no message of the key runs, the blocked one is due now: it is not blocked any more. The next take moves
-- its text. Returns whether there was one.
local function unblock(record, now_ms)
  local entry = record.current or record.next
  if record.running or not entry or entry.state == 'r' or score_of(record.base, entry) ~= BLOCKED then
    return false
  end
  redis.call('ZADD', record.base .. 'schedule', now_ms, entry.member)
  wake(record.base .. 'wake')
  return true
end

-- What a scheduled message has to do with its key: the record, nil if it has none; its own entry there, nil
-- if it does not hold the key; whether that is `next`; and whether it has to wait for another message. Writes
-- nothing.
local function look_at_key(base, member, stored, now_ms, list_of)
  local mode, _, key = unique_of(stored, stored_start(stored))
  if not mode then
    return nil
  end
  local record = read_record(base, key, mode)
  local is_current = record.current and record.current.member == member
  local is_next = not is_current and record.next and record.next.member == member
  if not is_current and not is_next then
    return record
  end
  local entry = is_current and record.current or record.next
  if mode ~= UNTIL_TAKEN then
    prune(record, now_ms, list_of)
  end
  return record, entry, is_next, record.running or is_next and record.current
end

-- To be called for a message that is about to leave the schedule for a ready list. If it has to wait for its
-- key, this blocks it and returns false. Also returns how many bytes its key counts as.
local function may_become_ready(base, member, stored, step, now_ms, list_of)
  local record, entry, is_next, is_busy = look_at_key(base, member, stored, now_ms, list_of)
  if not entry then
    return true, record and BYTES_OF_KEY or 0
  end
  if is_busy then
    redis.call('ZADD', base .. 'schedule', '+inf', member)
  else
    record.current = entry_at('r', step, now_ms, member, entry.expires_ms)
    record.next = not is_next and record.next or nil
  end
  write_record(record)
  return not is_busy, BYTES_OF_KEY
end

-- To be called for a message with a key that has left the queue for good, from the schedule or a ready list.
-- Returns how many bytes its key counts as.
local function forget_unique(base, stored, now_ms)
  local mode, id, key = unique_of(stored, stored_start(stored))
  local record = read_record(base, key, mode)
  if record.current and record.current.id == id then
    record.current = nil
  elseif record.next and record.next.id == id then
    record.next = nil
  end
  unblock(record, now_ms)
  write_record(record)
  return BYTES_OF_KEY
end

-- For a message with a key that is in no list: the id of the one that holds its key, nil if none does; its
-- own id; and its key.
local function look_for_holder(base, stored, start, now_ms, list_of)
  local mode, id, key = unique_of(stored, start)
  local record = read_record(base, key, mode)
  prune(record, now_ms, list_of)
  resolve_running(record)
  local holder = record.running or record.current or record.next
  return holder and holder.id, id, key
end

-- To be called for a message with a key that comes from a ready list or from another program, to the ready
-- list of its step or to the schedule, under this name: `state` is as above, s only if it has not begun. It
-- keeps its key, or takes it if nobody has it. If not, it is handed out as if it had none.
local function hold_or_keep(base, stored, state, now_ms, member, list_of)
  local mode, id, key = unique_of(stored, stored_start(stored))
  local record, step = read_record(base, key, mode), stored_step(stored)
  local current = record.current
  if current and current.id == id then
    record.current = entry_at(state == 's' and 'a' or state, step, now_ms, member, current.expires_ms)
    write_record(record)
    return
  end
  prune(record, now_ms, list_of)
  if not (record.running or record.current or record.next) then
    -- With "latest", what has not begun can be replaced.
    local slot = mode == 'l' and state == 's' and 'next' or 'current'
    record[slot] = entry_at(state, step, now_ms, member)
  end
  write_record(record)
end
