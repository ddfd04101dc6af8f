-- Finds the consumers of a queue that take nothing, because they have an isolated message of it. Writes
-- nothing.
--
-- KEYS[1]  consumers
-- ARGV[1]  beginning of the keys of unacked hashes; the name of the consumer follows
-- ARGV[2]  how many times lost a message is isolated
-- ARGV[3]  for how many microseconds it is, at most
--
-- Returns  their names
--
-- A consumer that takes such a message takes none after it, of any queue. So it is the newest of the
-- consumer, and only that one is read. What is beyond the bounds counts as not isolated.

-- include: clock
-- include: members

-- Tags that are looked at, of each consumer and together, and bytes of messages; one message may have more.
local LOOKED_AT, LOOKED_AT_IN_ALL, BYTES = 100, 2000, 256 * 1024
-- Digits of a tag: microseconds since the epoch, from 2001 to 2286. Other tags are not ours.
local DIGITS = 16

local function newest_of(tags)
  local newest = ''
  for _, tag in ipairs(tags) do
    if #tag == DIGITS and tag > newest then
      newest = tag
    end
  end
  return newest
end

local isolated_from, isolated_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local now_us = clock_us()
local looked_at, bytes, found = 0, 0, {}
for _, consumer in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now_us / 1000, '+inf')) do
  local unacked = ARGV[1] .. consumer
  local count = redis.call('HLEN', unacked)
  if count > 0 and count <= LOOKED_AT then
    looked_at = looked_at + count
    if looked_at > LOOKED_AT_IN_ALL or bytes >= BYTES then
      break
    end
    local tag = newest_of(redis.call('HKEYS', unacked))
    if now_us - (tonumber(tag) or 0) < isolated_us then
      local stored = redis.call('HGET', unacked, tag)
      bytes = bytes + #stored
      if losses(stored, stored_start(stored)) >= isolated_from then
        found[#found + 1] = consumer
      end
    end
  end
end
return found
