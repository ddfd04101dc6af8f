-- The take of a consumer whose queues have nothing particular: no limits and no turns, no unique keys,
-- nothing that is due, no message of another priority, nothing that waits for a worker that knows its task.
-- Most takes are such. It does what take_any.lua would do, with as few commands, tables and functions as it
-- can.

-- include: clock
-- include: first_due
-- include: history
-- include: queue
-- include: wake

-- Each queue that a script works on costs some microseconds, and more if a message of it is large.
local QUEUES_AT_MOST = 16

-- As losses() of members.lua. Few messages need more than the look at how they begin.
local function is_to_isolate(payload, isolated_at)
  if isolated_at == 0 or not string.find(payload, '^%s*{"redisdelay%-[dl][eo]') then
    return false
  end
  -- include: members
  return losses(payload, 1) >= isolated_at
end

-- As expect.lua.
local function has_rights(list, unacked_key)
  local check = redis.acl_check_cmd
  return not check or (check('RPOP', list) and check('HSET', unacked_key, '', ''))
end

-- The indices of the queues in the order in which they are taken from; nil if they are not all polled, or too
-- many.
local function plain_order(polled_indices)
  if polled_indices == '1' and #KEYS == 1 then
    return { 1 }
  end
  local order = {}
  for index in string.gmatch(polled_indices, '%d+') do
    order[#order + 1] = tonumber(index)
  end
  return #order == #KEYS and #order <= QUEUES_AT_MOST and order or nil
end

-- Returns what take.lua returns; nil if this take is another one. Then nothing was written.
local function take_plain()
  local call = redis.call
  local order = ARGV[#ARGV - step_count + 1] == '0' and plain_order(polled_indices)
  if not order or queue_options ~= '' or known_tasks ~= '' or is_repeated == '1' then
    return nil
  end

  -- What makes a queue another one.
  local bases, lists, particular = {}, {}, {}
  for i, index in ipairs(order) do
    local base, list = base_of(KEYS[index]), ready_of(KEYS[index], prefix, braces)
    bases[i], lists[i] = base, list
    particular[#particular + 1] = base .. 'control'
    particular[#particular + 1] = base .. 'unique'
    particular[#particular + 1] = base .. 'running'
    for arg = #ARGV - step_count + 2, #ARGV do
      particular[#particular + 1] = ready_key(list, separator, ARGV[arg])
    end
  end
  if call('EXISTS', unpack(particular)) > 0 then
    return nil
  end

  -- As read() of take_any.lua: if a key has a wrong type, this raises an error before anything was done.
  local now_us = clock_us()
  local counts, unacked, lease_ends_ms, due, total = {}, {}, {}, {}, 0
  for i, base in ipairs(bases) do
    local first_due_ms = first_due(base .. 'schedule')
    if first_due_ms then
      call('HLEN', base .. 'messages')
      local next_us = until_us(first_due_ms, now_us)
      if next_us == 0 then
        return nil
      end
      due[#due + 1] = string.format('%d %.0f', order[i], next_us)
    end
    lease_ends_ms[i] = tonumber(call('ZSCORE', base .. 'consumers', consumer)) or 0
    unacked[i] = base .. 'unacked:' .. consumer
    if call('HGET', unacked[i], first_tag) then
      return nil
    end
    counts[i] = call('LLEN', lists[i])
    total = total + counts[i]
  end

  local most = total > 0 and tonumber(limit) or 0
  for i = 1, most > 0 and #lists or 0 do
    if counts[i] > 0 and not has_rights(lists[i], unacked[i]) then
      -- take_any.lua says what is not allowed.
      return nil
    end
  end

  local reply, from, taken = { now_us, 0, 0, '', '', '', '' }, {}, {}
  local bytes_left, isolated_at, at = tonumber(byte_limit), tonumber(isolated_from), 1
  while #from < most and total > 0 and bytes_left > 0 do
    if counts[at] > 0 then
      local payload = call('RPOP', lists[at])
      local stored, fields = '0:' .. payload, taken[at] or {}
      taken[at] = fields
      fields[#fields + 1] = string.format('%d', first_tag + #from)
      fields[#fields + 1] = stored
      from[#from + 1], reply[#reply + 1] = order[at], stored
      counts[at], total, bytes_left = counts[at] - 1, total - 1, bytes_left - #stored
      if is_to_isolate(payload, isolated_at) then
        break
      end
    end
    if in_turn == '1' or counts[at] == 0 then
      at = at % #order + 1
    end
  end

  local more, now_ms = {}, math.floor(now_us / 1000)
  for i, base in ipairs(bases) do
    local fields = taken[i]
    if fields then
      call('HSET', unacked[i], unpack(fields))
      note_delivered(base .. 'history', #fields / 2)
      if lease_ends_ms[i] < now_ms + fresh_ms then
        call('ZADD', base .. 'consumers', now_ms + lease_ms, consumer)
      end
    end
    if counts[i] > 0 then
      more[#more + 1] = order[i] .. ' 1'
      wake(KEYS[order[i]])
    else
      call('DEL', KEYS[order[i]])
    end
  end
  reply[4], reply[5] = table.concat(due, ' '), table.concat(more, ' ')
  reply[7] = table.concat(from, ' ')
  return reply
end
