-- Removes keys, and counts what was in them. Not a transaction: a server that is out of memory refuses those,
-- and then it is good to be able to purge.
--
-- KEYS     first lists, then zsets, then others. If they have messages that wait and there are zsets, the
--          first one is the schedule of the queue; of messages that are over, the last keys have the groups,
--          and those that have returned (include/archive.lua)
-- ARGV[1]  how many lists
-- ARGV[2]  how many zsets
-- ARGV[3]  "waiting", or "over"
--
-- Returns  how many members the lists and zsets had; nil if some have returned: then nothing was done

-- include: history

local lists, zsets, is_over = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == 'over'
if is_over then
  -- The list of them may have been lost.
  local has_some = redis.pcall('HEXISTS', KEYS[#KEYS - 1], 'returned') == 1
  if has_some or redis.call('EXISTS', KEYS[#KEYS]) == 1 then
    return nil
  end
end
local count = 0
for i, key in ipairs(KEYS) do
  if i <= lists then
    count = count + redis.call('LLEN', key)
  elseif i <= lists + zsets then
    count = count + redis.call('ZCARD', key)
  end
end
redis.call('UNLINK', unpack(KEYS))
if zsets > 0 and not is_over then
  note(KEYS[lists + 1], 'other', -count)
end
return count
