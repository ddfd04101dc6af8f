-- The server's clock, the only one that times are compared with, in microseconds since the epoch.
local function clock_us()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end

-- In whole milliseconds, as the ends of leases and the times of dead letters are. A due time has the
-- microseconds as its fraction: compare it with clock_us() / 1000, and do not join it to a string by `..`,
-- which keeps 14 digits.
local function clock_ms()
  return math.floor(clock_us() / 1000)
end
