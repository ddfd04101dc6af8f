-- A message leaves the place where it is: the consumer that holds it, the schedule, or a ready list. Where it
-- goes, arrive.lua says. These two files know what each feature does then, and no other one does.
--
-- A script finds a message first: unacked_message(), scheduled_message(), or other_message() of one that it
-- has from elsewhere. What could fail where it goes is found out next, by expect_*(). Then leave() is the
-- first write, so a full Redis allows the rest (full.lua).
--
-- Of its `queue`, this needs the keys base and unacked, or schedule, messages and duplicates, as far as the
-- message comes from there, and what read_features() finds out.

--
-- A script makes all of its functions anew at each call, which costs as much as what most calls then do. So
-- what a feature does is made inside of a function, for the first message or queue that uses it.

-- include: duplicates
-- include: unique_member

-- What is done with the unique key of a message; nil if it has none.
local made
local function unique(message)
  if not unique_of(message.stored, message.start) then
    return nil
  elseif not made then
    -- include: unique_unacked
    made = {
      of_unacked = unique_key_of,
      free = free_unique_key,
      is_replaced_by_retry = is_replaced_by_retry,
      keep = keep_unique_key,
      look = look_at_key,
      may_become_ready = may_become_ready,
      forget = forget_unique,
      look_for_holder = look_for_holder,
      hold_or_keep = hold_or_keep,
    }
  end
  return made
end

-- What is done in a queue that is fair, or that counts the messages of each key; nil for another queue.
local function for_keys(queue)
  -- include: fair_key
  -- include: fair_unacked
  local base, state, is_counting = queue.base, fair_state(queue.base), counts_keys(queue.base)
  if not state and not is_counting then
    return nil
  end
  local had_messages = {}
  return {
    are_sorted = state == 'on',
    are_counted = is_counting,
    leave = function(tag)
      return is_counting and release_key(base, queue.unacked, tag)
    end,
    -- At the head, a message is in the list of its key.
    arrive_first = function(step, payload)
      local key, with_key = key_and_payload(payload)
      put_first(base, step, key, with_key, had_messages)
    end,
    -- When all have arrived.
    have_arrived = function()
      turns_of_first(base, had_messages)
    end,
  }
end

-- Finds out whether keys matter in a queue: for most queues, this is one command.
local function read_features(queue)
  if redis.call('EXISTS', queue.base .. 'control', queue.base .. 'unacked-keys') > 0 then
    queue.keys = for_keys(queue)
  end
end

-- The message with a delivery tag; nil if it is not unacked any more: it is in another place by now.
--   stored, start, step   as in stored.lua
--   unique_key            its unique key (unique_unacked.lua); nil if it has none
local function unacked_message(queue, tag)
  local stored = redis.call('HGET', queue.unacked, tag)
  if not stored then
    return nil
  end
  local start, step = stored_start(stored), stored_step(stored)
  local message = { queue = queue, tag = tag, stored = stored, start = start, step = step }
  local with_key = unique(message)
  message.unique_key = with_key and with_key.of_unacked(queue.base, queue.unacked, tag, stored, start)
  return message
end

-- The same of a message that no consumer holds: it was ready, or another program had it. `id` is needed if it
-- goes to another place.
local function other_message(queue, stored, id)
  local start, step = stored_start(stored), stored_step(stored)
  return { queue = queue, stored = stored, start = start, step = step, id = id }
end

-- The same of a scheduled message, which the caller has read, under the name that it has there.
local function scheduled_message(queue, member, stored)
  local message = other_message(queue, stored)
  message.member = member
  return message
end

-- The same of a message that is nowhere: it was taken without acks, or acked before its task ran.
local function copied(queue, stored)
  local message = other_message(queue, stored)
  message.tag = ''
  return message
end

local function leave(message)
  local queue = message.queue
  if message.member then
    unschedule(queue.schedule, queue.messages, queue.duplicates, message.member)
    return
  end
  redis.call('HDEL', queue.unacked, message.tag)
  if queue.keys then
    queue.keys.leave(message.tag)
  end
end

-- It has left for good: it is over, or its own retry is there in its place. Returns how many bytes its key
-- counts as.
local function is_over(message, now_ms)
  if not message.tag then
    local with_key = unique(message)
    return with_key and with_key.forget(message.queue.base, message.stored, now_ms) or 0
  elseif message.unique_key then
    unique(message).free(message.unique_key, now_ms)
    return BYTES_OF_KEY
  end
  return 0
end
