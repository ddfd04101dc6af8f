-- Counts anew how many messages of a fair queue are sorted (fair.lua). A count that was lost would close a
-- step too early, or never. A few keys are counted exactly. Of more, some are, at random, and the number is
-- an estimate: the step stays open until there are few.

-- include: fair

-- Lists of keys that one script looks at.
local MOST_COUNTED = 1000

-- What the hash `limited` has of up to `most` keys that wait at limits.
local function read_limited(base, most)
  local limited = base .. 'limited'
  local all, found = redis.call('HLEN', limited), {}
  local some = all > 0 and redis.call('HRANDFIELD', limited, math.min(all, most), 'WITHVALUES') or {}
  for i = 1, #some, 2 do
    found[some[i]] = some[i + 1]
  end
  return { turns_of = found, is_whole = all <= most, times = all > most and all / most or 1 }
end

-- How many messages of a step have a turn or wait at a limit; whether that is exact; and at how many lists it
-- has looked: `most` for each of the two.
local function count_step(base, step, limited, most)
  local zset, seen = base .. 'turns:' .. step, {}
  local all = redis.call('ZCARD', zset)
  local function count(key)
    seen[key] = true
    local length = redis.pcall('LLEN', key_list(base, step, key))
    -- Another program may have put something else there.
    return type(length) == 'number' and length or 0
  end
  local with_turn, at_limit, looked_at = 0, 0, 0
  local keys = all <= most and redis.call('ZRANGE', zset, 0, -1) or redis.call('ZRANDMEMBER', zset, most)
  for _, key in ipairs(keys) do
    with_turn, looked_at = with_turn + count(key), looked_at + 1
  end
  for key, turns in pairs(limited.turns_of) do
    if not seen[key] and waits_in(step, turns) then
      at_limit, looked_at = at_limit + count(key), looked_at + 1
    end
  end
  local times = all > most and all / most or 1
  return math.ceil(with_turn * times + at_limit * limited.times), all <= most and limited.is_whole, looked_at
end

-- Compares what is said to be sorted with the lists. Puts right what is too little at once: those lists
-- would not be served. If it differs, there may be lists without a turn, which only a search finds: so with
-- `is_searched`, after that, all is put right. Returns whether it differs.
local function check_step(base, step, limited, is_searched)
  local hash = base .. 'fair'
  local noted, is_uncounted = unpack(redis.call('HMGET', hash, 'n:' .. step, 'is_uncounted:' .. step))
  noted = tonumber(noted)
  if not noted and redis.call('EXISTS', base .. 'turns:' .. step) == 0 then
    return false, 0
  end
  local count, is_exact, looked_at = count_step(base, step, limited, MOST_COUNTED / 2)
  local differs = is_exact and (noted ~= count or is_uncounted == '1')
  if not is_exact then
    if is_uncounted == '1' or not noted or is_searched then
      redis.call('HSET', hash, 'n:' .. step, math.max(1, count), 'is_uncounted:' .. step, '1')
    end
  elseif differs and count == 0 and (is_searched or not noted) then
    forget_step(base, step)
  elseif differs and is_searched then
    redis.call('HDEL', hash, 'is_uncounted:' .. step)
    redis.call('HSET', hash, 'n:' .. step, count)
  elseif differs and count > (noted or 0) then
    redis.call('HSET', hash, 'n:' .. step, count)
  end
  return differs and not is_searched, looked_at
end

-- Checks the `steps`, and those that the hash has besides, as far as MOST_COUNTED lists go: one after the
-- other, from one call to the next by the time. Returns whether any of them differs.
local function check_counts(base, steps, now_us, is_searched)
  local all, is_known = {}, {}
  local function add(step)
    if not is_known[step] then
      all[#all + 1], is_known[step] = step, true
    end
  end
  for _, step in ipairs(steps) do
    add(step)
  end
  for _, field in ipairs(redis.call('HSCAN', base .. 'fair', '0', 'COUNT', '200')[2]) do
    local step = string.match(field, '^n:(%d+)$')
    if step then
      add(step)
    end
  end
  local limited, left, differs = read_limited(base, MOST_COUNTED / 2), MOST_COUNTED, false
  for i = 1, #all do
    if left >= MOST_COUNTED / 2 then
      local step = all[(now_us + i) % #all + 1]
      local differs_here, looked_at = check_step(base, step, limited, is_searched)
      differs, left = differs or differs_here, left - looked_at
    end
  end
  return differs
end
