-- Frees keys whose message is gone: a program that does not know keys has taken, removed or purged it. Looks
-- at some keys.
--
-- KEYS[1]  wake zset
-- KEYS[2]  ready list of step 0
-- ARGV[1]  separator between a queue's name and a priority step
-- ARGV[2]  how many keys to look at, of those that wait and of those that run
-- ARGV[3]  where to begin with those that wait: "0", or what the last call returned
-- ARGV[4]  the same for those that run
--
-- Returns  where to begin the next time with those that wait, and with those that run
--
-- Keeps: no message is moved. A message that waits for a free key is due now.

-- include: base
-- include: clock
-- include: wake
-- include: stored
-- include: members
-- include: unique

local base = base_of(KEYS[1])
local now_ms = clock_us() / 1000
local function list_of(step)
  return ready_key(KEYS[2], ARGV[1], step)
end

local function check(hash, cursor)
  local scan = redis.pcall('HSCAN', base .. hash, cursor, 'COUNT', ARGV[2])
  if scan.err then
    -- What another program has written there is left alone.
    return '0'
  end
  for i = 1, #scan[2], 2 do
    local record = read_record(base, scan[2][i])
    heal(record, now_ms, list_of)
    let_go(record, now_ms)
    write_record(record)
  end
  return scan[1]
end

return { check('unique', ARGV[3]), check('running', ARGV[4]) }
