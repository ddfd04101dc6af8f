-- Reads some of the messages that a consumer holds. Writes nothing.
--
-- KEYS[1]  unacked of the consumer
-- ARGV[1]  how many bytes, roughly; one message may have more
-- ARGV[2+] delivery tags
--
-- Returns  for each tag, as far as there was room: the message as it is stored (nil: it is not
--          unacked any more)

local reply, bytes = {}, 0
for i = 2, #ARGV do
  if bytes >= tonumber(ARGV[1]) then
    break
  end
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  reply[i - 1] = stored
  bytes = bytes + (stored and #stored or 0)
end
return reply
