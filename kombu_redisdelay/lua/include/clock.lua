-- The server's clock, the only one that times are compared with, in microseconds since the epoch.
local function clock_us()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end

local function clock_ms()
  return math.floor(clock_us() / 1000)
end
