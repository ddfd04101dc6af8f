-- Adds one to an archive (archive.lua), and drops the oldest ones for it if these are too many.

-- include: archive

local KEPT, IS_THERE, REFUSED = 'kept', 'is there', 'refused'

-- Of those that are too many, a script that adds one drops so many. More are left to the next one, and to
-- maintenance.
local MOST_TRIMMED = 100

-- What most calls do not need: so it is made only for one that does.
local function for_upkeep()
  -- include: archive_upkeep
  return { count_from = count_from, trim = trim_archive }
end

-- The time in microseconds. Several that come in one script have different ones, in their order.
local latest_us = 0

local function next_us()
  latest_us = math.max(clock_us(), latest_us + 1)
  return latest_us
end

-- The name that it gets; nil if it is a copy that is there.
local function name_for(keys, over)
  local id, name = over.id, over.id .. DUPLICATE .. over.tag
  local has_other, is_there = unpack(redis.call('ZMSCORE', keys.index, id, name))
  if over.is_copy then
    local other = has_other and redis.call('HGET', keys.heads, id) or ''
    -- The other one that had the id may have been dropped since.
    if is_there or string.match(other, '^%d+ %d+ %S+ %S+ (%S+) ') == over.tag then
      return nil
    end
  end
  if not has_other then
    return id
  end
  while is_there do
    name = name .. DUPLICATE .. string.format('%.0f', clock_us())
    is_there = redis.call('ZSCORE', keys.index, name)
  end
  return name
end

-- Adds a message. `over` has
--   id, tag         its id, and the tag of its last delivery
--   failures        how many deliveries of it have failed
--   group, details  "<task> <error>", and what else is noted of it, JSON in one line
--   lost            what was lost of it, if it is known to have returned
--   stored          the message as it is kept
--   is_copy         whether it may be there already
--   at_us           when it came; nil: now
-- To be called where a script has written nothing, or has removed something: else a full server would refuse
-- this in between. Returns one of the three words above; and what the server has said if it refused it.
local function keep(archive, over)
  local keys, at_us, name = archive.keys, over.at_us or next_us(), name_for(archive.keys, over)
  if not name then
    return IS_THERE
  end
  local at_ms = at_us / 1000
  -- The first write of all: a full server refuses this one, and no later one (full.lua).
  local added = redis.pcall('ZADD', keys.index, string.format('%.3f', at_ms), name)
  if type(added) ~= 'number' then
    return REFUSED, added
  end
  local is_damaged = archive.heads == 0 or archive.messages == 0 or archive.heads > archive.index
  -- Or there was none yet.
  if is_damaged or not archive.bytes then
    for_upkeep().count_from(archive, at_ms)
  end
  archive.index = archive.index + 1
  local numbers = string.format('%.0f %.0f', at_us, over.failures)
  local head = table.concat({ numbers, over.group, over.is_copy and over.tag or '-', over.details }, ' ')
  archive.heads = archive.heads + redis.call('HSET', keys.heads, name, head)
  archive.messages = archive.messages + redis.call('HSET', keys.messages, name, over.stored)
  list_besides(archive, name, at_ms, over.lost)
  count_kept(archive, at_ms, over.group, over.lost, #head + #over.stored, 1)
  return KEPT
end

-- To be called when one was added. Returns how many older ones were dropped because they were too many.
local function keep_within(archive, limits, now_ms)
  if not first_to_go(archive, limits, now_ms) then
    return 0
  end
  local _, dropped = for_upkeep().trim(archive, limits, now_ms, MOST_TRIMMED)
  return dropped
end
