-- A queue declared with x-expires lives that long after its last use: every key of it gets the same time.
local function expire(expires_ms, keys)
  if expires_ms > 0 then
    for _, key in ipairs(keys) do
      redis.call('PEXPIRE', key, expires_ms)
    end
  end
end

-- How long what a consumer holds lives on: until others can have noticed that it is gone, and given it back.
local function held_for_ms(expires_ms, lease_ms)
  return expires_ms + 2 * lease_ms
end
