-- The history of a queue is a hash. Scripts count in it what they do:
--   delivered, failed, dead   since the history began; they only grow
--   dropped, replaced         publishes that met another message with their key (unique.lua); they only grow
--   failed_tasks              tasks that have failed for good (archive.lua); it only grows
--   returned                  tasks that are known to have returned, and could not be ended; it only grows
--   continuations             of these, the ones of which something that follows was lost; it only grows
--   failed_dropped            failed tasks that were dropped because too many were kept, or too many bytes;
--                             it only grows
--   drops_told                that number, and when, as a worker has told of them the last time
--   other                     messages that have come back to the queue, less those that were removed: what
--                             changes its length and is neither published nor delivered
-- record.lua does the rest. Publishing needs no script, so it is derived: a queue has grown by what was
-- published, less what was delivered, and by the others.
--   published                 it only grows, too
--   flow                      length of the queue + delivered - other, as it was at the latest record
--   minute, hour              when it began, and what published, delivered, failed, dead, dropped, replaced,
--                             failed_tasks, failed_dropped, returned and continuations were then
--   minutes, hours            a line for each in which something has happened: when it began, how many
--                             seconds it had, and by how much the same ten have grown
-- Times are whole seconds by the server's clock. The numbers of a line are separated by spaces. The last two,
-- which an older release does not know, are left out where they are 0.

-- include: base

-- It is kept for this time after the latest record, unless the queue is deleted or expires.
local HISTORY_KEPT_MS = 7 * 24 * 3600 * 1000
-- It is kept for this time before the first record, because a queue that is deleted when its consumer goes
-- has no maintenance; and if the queue was used for a moment, such as one for replies.
local BRIEF_HISTORY_KEPT_MS = 3600 * 1000

-- A take begins a history, and so does a record if there is a consumer that acks. A history must not stop
-- what it counts: errors are ignored.

local function note_delivered(history, count)
  local delivered = redis.pcall('HINCRBY', history, 'delivered', string.format('%d', count))
  if delivered == count and redis.call('PTTL', history) == -1 then
    redis.call('PEXPIRE', history, BRIEF_HISTORY_KEPT_MS)
  end
end

-- `key` is another key of the queue, as base_of() needs it.
local function note(key, field, count)
  local history = base_of(key) .. 'history'
  if count ~= 0 and redis.call('EXISTS', history) == 1 then
    redis.pcall('HINCRBY', history, field, count)
  end
end

-- Notes that `count` messages were given back, of which `dead` became dead letters. `reason` is that of
-- give_back.lua.
local function note_given_back(key, reason, count, dead)
  note(key, 'other', count - dead)
  note(key, 'dead', dead)
  if reason == 'failed' or reason == 'lost' then
    note(key, 'failed', count)
  end
end
