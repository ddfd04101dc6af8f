-- Reads some dead letters, the oldest first. Writes nothing.
--
-- KEYS[1]  dead
-- ARGV[1]  how many of the oldest to skip
-- ARGV[2]  how many at most
-- ARGV[3]  how many bytes, roughly; one letter may have more
--
-- Returns  the letters as they are in the list

local reply, bytes = {}, 0
for i = 1, tonumber(ARGV[2]) do
  local letter = redis.call('LINDEX', KEYS[1], -(ARGV[1] + i))
  if not letter or bytes >= tonumber(ARGV[3]) then
    break
  end
  reply[i] = letter
  bytes = bytes + #letter
end
return reply
