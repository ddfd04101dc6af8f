-- A queue declared with x-expires lives that long after its last use: every key of it gets the same time.
local function expire(expires_ms, keys)
  if expires_ms > 0 then
    for _, key in ipairs(keys) do
      redis.call('PEXPIRE', key, expires_ms)
    end
  end
end
