-- A queue declared with x-expires lives that long after its last use: all its keys get the same time to live.
local function expire(expires_ms, keys)
  if expires_ms > 0 then
    for _, key in ipairs(keys) do
      redis.call('PEXPIRE', key, expires_ms)
    end
  end
end
