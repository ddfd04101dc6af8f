-- Records in the histories of queues what has happened since the latest record (see include/history.lua).
-- Does nothing for a queue that has a record of this minute, or that never had a consumer.
--
-- KEYS     wake of each queue; the other keys are made from it (see include/queue.lua)
-- ARGV[1]  global_keyprefix
-- ARGV[2]  separator between a queue's name and a priority step
-- ARGV[3]  how many braces a ready list has on each side of the queue's name (1 on a cluster, else 0)
-- ARGV[4]  x-expires of each queue, ms (0: none), separated by spaces
-- ARGV[5+] the priority steps
--
-- Keeps: a total never shrinks, though stock workers take messages without counting them.

-- include: clock
-- include: history
-- include: queue
-- include: length

local FIELDS = {
  'delivered', 'failed', 'dead', 'dropped', 'replaced', 'failed_tasks', 'failed_dropped', 'returned',
  'continuations', 'other', 'published', 'flow',
}
-- How many counts an older release writes, and reads. The others are left out of a line where they are 0.
local LEAST_COUNTS = 8
local SPANS = {
  { mark = 'minute', lines = 'minutes', seconds = 60, kept_s = 3600 },
  { mark = 'hour', lines = 'hours', seconds = 3600, kept_s = 7 * 24 * 3600 },
}

local prefix, separator, braces = ARGV[1], ARGV[2], tonumber(ARGV[3])
local steps = { unpack(ARGV, 5) }
local expires_ms = {}
for ms in string.gmatch(ARGV[4], '%d+') do
  expires_ms[#expires_ms + 1] = tonumber(ms)
end
local now_s = math.floor(clock_ms() / 1000)

local function join(numbers)
  local texts = {}
  for i, number in ipairs(numbers) do
    texts[i] = string.format('%.0f', number)
  end
  return table.concat(texts, ' ')
end

-- A mark that another program has written is over at once.
local function is_over(mark, span)
  local began_s = tonumber(string.match(mark, '^%d+'))
  return not began_s or math.floor(began_s / span.seconds) ~= math.floor(now_s / span.seconds)
end

-- The lines without those that are too old, or that were written when the clock was ahead.
local function cut(lines, span)
  local start = 1
  while start <= #lines do
    local began_s, seconds = string.match(lines, '^(%d+) (%d+) ', start)
    if began_s and began_s + seconds > now_s - span.kept_s and tonumber(began_s) <= now_s then
      break
    end
    start = (string.find(lines, '\n', start, true) or #lines) + 1
  end
  return string.sub(lines, start)
end

-- Ends a minute or an hour, and begins another one.
local function turn(history, span, mark, totals)
  local before = {}
  for number in string.gmatch(mark, '%d+') do
    before[#before + 1] = tonumber(number)
  end
  if #before <= LEAST_COUNTS then
    return
  end
  local line, happened = { before[1], math.max(0, now_s - before[1]) }, 0
  for i, total in ipairs(totals) do
    -- An older release has not noted all of them.
    line[i + 2] = total - (before[i + 1] or total)
    happened = happened + line[i + 2]
  end
  while #line > 2 + LEAST_COUNTS and line[#line] == 0 do
    line[#line] = nil
  end
  if happened > 0 then
    local lines = cut(redis.call('HGET', history, span.lines) or '', span)
    redis.call('HSET', history, span.lines, lines .. join(line) .. '\n')
  end
end

local function record(base, history, ready)
  local found = redis.call('HMGET', history, unpack(FIELDS))
  for i = 1, #FIELDS do
    found[i] = tonumber(found[i]) or 0
  end
  local delivered = found[1]
  local other, published, flow_before = unpack(found, #FIELDS - 2)
  local flow = length(ready, base .. 'schedule') + delivered - other
  published = published + math.max(0, flow - flow_before)
  local totals = { published, unpack(found, 1, #FIELDS - 3) }
  local beginning = join({ now_s, unpack(totals) })
  redis.call('HSET', history, 'published', join({ published }), 'flow', join({ flow }))
  for _, span in ipairs(SPANS) do
    local mark = redis.call('HGET', history, span.mark)
    if not mark or is_over(mark, span) then
      if mark then
        turn(history, span, mark, totals)
      end
      redis.call('HSET', history, span.mark, beginning)
    end
  end
end

for index, wake_key in ipairs(KEYS) do
  local base = base_of(wake_key)
  local history = base .. 'history'
  local mark = redis.pcall('HGET', history, 'minute')
  -- A table is an error: the key has another type.
  local is_due = type(mark) == 'string' and is_over(mark, SPANS[1])
  if is_due or (not mark and redis.call('EXISTS', base .. 'consumers') == 1) then
    record(base, history, ready_lists(ready_of(wake_key, prefix, braces), separator, steps))
    redis.call('PEXPIRE', history, expires_ms[index] > 0 and expires_ms[index] or HISTORY_KEPT_MS)
  end
end
