-- Removes the oldest failed tasks, or dead letters, of a queue as long as they are too many, too old or too
-- large together. Before, it mends what was lost of their keys, and forgets which of those that are gone have
-- returned (include/archive_upkeep.lua). If there are none, what is left of them goes.
--
-- KEYS[1]  index of the state: failed, or dead:index
-- ARGV[1]  how many are kept
-- ARGV[2]  for how long, ms ("": for ever)
-- ARGV[3]  of how many bytes together ("": any number)
-- ARGV[4]  how many to count anew and how many to remove at most
-- ARGV[5]  from how many on that were dropped though they were not too old the caller tells of them ("": of
--          each that this call has dropped)
-- ARGV[6]  after how many seconds somebody tells of further ones
-- ARGV[7]  where to look for what the index and the list of the returned ones should have or not: "0", or as
--          it was returned; "": nowhere
--
-- Returns  how many were counted anew, or removed, whichever is more; how many the caller has to tell of:
--          they were dropped since somebody has told of some, by whichever worker; and the next ARGV[7]

-- include: archive_upkeep
-- include: history

local count, age_ms, bytes, at_most, told_from, told_every_s, lost_from = unpack(ARGV)
local most, now_us = tonumber(at_most), clock_us()
local now_ms = now_us / 1000
local is_usable, archive = pcall(open_archive, KEYS[1])
if not is_usable then
  return { 0, 0, '' }
end
local walk, cursor = string.match(lost_from, '^(%a*) ?(%d+)$')
local where = walk == '' and unlisted_in(archive) or walk
if where == 'heads' or where == 'messages' then
  cursor = list_again(archive, where, cursor, most, now_us)
  return { 0, 0, cursor == '0' and 'returned 0' or where .. ' ' .. cursor }
end
if archive.index == 0 then
  unlink_rest(archive)
  return { 0, 0, '' }
end
if cursor then
  cursor = forget_returned(archive, cursor, most, now_ms)
end
if is_damaged(archive) then
  -- None has come at a later time.
  count_from(archive, now_ms + 0.001)
end
local counted = count_anew(archive, most)
local trimmed, dropped = trim_archive(archive, limits_of(count, age_ms, bytes), now_ms, most)

-- What another program has written there counts as nothing, and so does a number that is too long for us.
local function number_of(text, pattern)
  local digits = type(text) == 'string' and string.match(text, pattern) or ''
  return #digits <= 15 and tonumber(digits) or 0
end

local function to_tell()
  if told_from == '' then
    return dropped
  end
  note(KEYS[1], 'failed_dropped', dropped)
  local history = base_of(KEYS[1]) .. 'history'
  local found, before = unpack(redis.pcall('HMGET', history, 'failed_dropped', 'drops_told'))
  local total, told = number_of(found, '^%d+$'), number_of(before, '^%d+')
  local told_s = number_of(before, ' (%d+)$')
  local now_s = math.floor(now_ms / 1000)
  local is_early = told_s <= now_s and now_s < told_s + tonumber(told_every_s)
  if total - told < tonumber(told_from) or is_early then
    return 0
  end
  -- If a full server refuses that, another worker tells of them later.
  local is_noted = redis.pcall('HSET', history, 'drops_told', string.format('%.0f %.0f', total, now_s))
  return type(is_noted) == 'number' and total - told or 0
end

return { math.max(counted, trimmed), to_tell(), cursor and cursor ~= '0' and 'returned ' .. cursor or '' }
