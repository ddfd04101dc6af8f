-- Looks at some keys of a fair queue. Lets keys have their turns again that are at no limit any more, because
-- the limits were changed, and puts right how long others wait. Forgets rates of which nothing is used. Puts
-- right what is left when some of the keys of the queue were lost.
--
-- KEYS[1]  limits (hash `control`)
-- KEYS[2]  wake zset
-- ARGV[1]  how many of the keys at a limit to look at
-- ARGV[2]  where to begin with them: "0", or what the last call returned
-- ARGV[3]  "1": lists without a turn were looked for just now (relist.lua)
-- ARGV[4+] the priority steps
--
-- Returns  where to begin the next time; 1 if there may be lists without a turn: the caller looks for them,
--          and calls again; 1 if what is unacked has to be counted anew: nothing is taken before the caller
--          has done that (count_keys.lua)
--
-- Keeps: no message is moved.

-- include: fair_limits
-- include: fair_count
-- include: fair_counting

-- Keys with unacked messages that are looked at together.
local MOST_ACTIVE = 1000

local base, count = base_of(KEYS[1]), ARGV[1]

-- Whether any key has limits of its own is told in another hash, too: that one may have been lost.
local function check_own_limits()
  local has_own = redis.call('EXISTS', base .. 'key-limits')
  if has_own == redis.call('HEXISTS', KEYS[1], 'has_key_limits') then
    return
  end
  work_when_full(KEYS[1])
  if has_own == 1 then
    redis.call('HSET', KEYS[1], 'has_key_limits', '1')
  else
    redis.call('HDEL', KEYS[1], 'has_key_limits')
  end
end

-- Each message that is counted is in two hashes. If one of these was lost, or a part of it, a key would wait
-- at its limit for ever. Returns 1 if all are being counted anew.
local function check_active()
  local counted = is_counted(KEYS[1])
  check_own_limits()
  local counts, unacked = base .. 'active', 0
  local keys = redis.call('HLEN', counts)
  if counted and keys <= MOST_ACTIVE then
    local all = keys > 0 and redis.call('HRANDFIELD', counts, keys, 'WITHVALUES') or {}
    for i = 2, #all, 2 do
      unacked = unacked + (tonumber(all[i]) or 0)
    end
    -- As if it was not: it is counted anew.
    counted = unacked == redis.call('HLEN', base .. 'unacked-keys')
  end
  if redis.call('HEXISTS', KEYS[1], 'counting') == 0 then
    count_keys_from_now(KEYS[1], counted)
  end
  return redis.call('HEXISTS', KEYS[1], 'counting')
end

local function check_limited(cursor)
  local scan = redis.call('HSCAN', base .. 'limited', cursor, 'COUNT', count)
  local fair = { base = base, needs_ack = true, now_us = clock_us() }
  read_fair_limits(fair)
  local keys, free = {}, {}
  for i = 1, #scan[2], 2 do
    keys[#keys + 1] = scan[2][i]
  end
  read_keys(fair, keys)
  local put_right = {}
  for _, key in ipairs(keys) do
    if not is_at_limit(fair, key) then
      free[#free + 1] = key
    elseif fair.keys[key].is_put_right then
      put_right[#put_right + 1] = key
    end
  end
  write_counts(fair)
  set_alarms(fair, put_right)
  if unlimit(base, free) or #put_right > 0 then
    wake(KEYS[2])
  end
  if fair.has_rate then
    -- An idle queue has no takes, which do it else.
    take_past(fair, 'tats')
  else
    redis.call('UNLINK', base .. 'tats', base .. 'alarms')
  end
  return scan[1]
end

local is_counting, cursor = check_active(), check_limited(ARGV[2])
local differs = check_counts(base, { unpack(ARGV, 4) }, clock_us(), ARGV[3] == '1')
-- Where takes looked in a release before 0.1 for what was acked without counting.
redis.call('UNLINK', base .. 'earlier')
return { cursor, differs and 1 or 0, is_counting }
