-- A consumer that holds messages is in the zset `consumers` (renew.lua), where others see that it is lost. If
-- that was lost, nobody would ever give back what a killed consumer holds.

-- include: expire

-- Lists those of the consumers that are not listed. Their leases have ended: a living consumer renews its own
-- one soon. Returns the others, and how many messages these hold together. `only_looks`: to list none.
local function list_holders(base, names, only_looks)
  local ends = #names > 0 and redis.call('ZMSCORE', base .. 'consumers', unpack(names)) or {}
  local unlisted, messages = {}, 0
  for i, name in ipairs(names) do
    local unacked = base .. 'unacked:' .. name
    local count = not ends[i] and redis.call('HLEN', unacked) or 0
    if count > 0 then
      unlisted[#unlisted + 1], messages = name, messages + count
      if not only_looks then
        redis.call('ZADD', base .. 'consumers', 'NX', '0', name)
        -- In a queue that expires.
        expire(redis.call('PTTL', unacked), { base .. 'consumers' })
      end
    end
  end
  return unlisted, messages
end
