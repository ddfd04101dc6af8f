-- Where messages leave the list of their key without being taken (fair.lua).

-- include: fair

-- What is left of the text in `limited` without this step.
local function without_step(turns, step)
  local others = {}
  for other, at in string.gmatch(turns, '(%d+) (%-?%d+)') do
    if other ~= step then
      others[#others + 1] = other .. ' ' .. at .. ' '
    end
  end
  return table.concat(others)
end

-- To be called when `count` messages have left `list`, whichever list of the queue it is.
local function forget_sorted(base, list, count)
  local is_ours = string.sub(list, 1, #base) == base
  local step, key = string.match(is_ours and string.sub(list, #base + 1) or '', '^(%d*):(.*)$')
  if not step or count == 0 then
    return
  end
  -- See key_list().
  step = step == '' and '0' or step
  if redis.call('EXISTS', list) == 0 then
    local turns = without_step(redis.call('HGET', base .. 'limited', key) or '', step)
    if turns == '' then
      redis.call('HDEL', base .. 'limited', key)
    else
      redis.call('HSET', base .. 'limited', key, turns)
    end
  end
  local left = redis.pcall('HINCRBY', base .. 'fair', 'n:' .. step, -count)
  if type(left) ~= 'number' then
    -- Another program has written something else there.
    return
  elseif left < 0 then
    lose_count(base, step)
  elseif left == 0 and not redis.call('HGET', base .. 'fair', 'is_uncounted:' .. step) then
    forget_step(base, step)
    if redis.call('EXISTS', base .. 'fair') == 0 then
      -- Nobody waits.
      redis.call('UNLINK', base .. 'limited', base .. 'alarms')
    end
  end
end
