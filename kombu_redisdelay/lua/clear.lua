-- Removes keys, and counts what was in them. Not a transaction: a server that is out of memory refuses those,
-- and then it is good to be able to purge.
--
-- KEYS     first lists, then zsets, then others. If there are zsets, the first one is the schedule of a queue
--          whose messages they all hold
-- ARGV[1]  how many lists
-- ARGV[2]  how many zsets
--
-- Returns  how many members the lists and zsets had

-- include: history

local lists, zsets = tonumber(ARGV[1]), tonumber(ARGV[2])
local count = 0
for i, key in ipairs(KEYS) do
  if i <= lists then
    count = count + redis.call('LLEN', key)
  elseif i <= lists + zsets then
    count = count + redis.call('ZCARD', key)
  end
end
redis.call('UNLINK', unpack(KEYS))
if zsets > 0 then
  note(KEYS[lists + 1], 'other', -count)
end
return count
