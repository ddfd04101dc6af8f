-- Looks for large messages in a hash. Writes nothing. Bounded: it looks at some entries.
--
-- KEYS[1]  the messages: a hash with a field for each
-- KEYS[2]  what is noted of each of them: a hash with the same fields. It may be left out
-- ARGV[1]  where to begin, any number
-- ARGV[2]  how many entries to look at, roughly
-- ARGV[3]  with how many bytes a message is large
--
-- Returns  how many it has looked at; then the fields of the large ones

local entries, least = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])[2], tonumber(ARGV[3])
local found = { #entries / 2 }
for i = 1, #entries, 2 do
  local size = #entries[i + 1]
  if KEYS[2] then
    size = size + redis.call('HSTRLEN', KEYS[2], entries[i])
  end
  if size >= least then
    found[#found + 1] = entries[i]
  end
end
return found
