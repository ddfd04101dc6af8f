-- The server's clock, in microseconds since the epoch. Times are compared with no other clock.
local function clock_us()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end

-- The same in whole milliseconds, as for the ends of leases and the times of dead letters. A due time has the
-- microseconds as its fraction. Compare it with clock_us() / 1000, and do not append it to a string with
-- `..`, which keeps only 14 digits.
local function clock_ms()
  return math.floor(clock_us() / 1000)
end
