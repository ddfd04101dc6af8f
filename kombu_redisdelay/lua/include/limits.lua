-- The limits that an operator has set for a queue, for all its consumers together. The hash `control` has
--   paused_ms     since when nothing may be taken, ms since the epoch
--   interval_us   with a rate: microseconds from one message to the next, with a fraction
--   burst         with a rate: how many messages may be taken at once, after a while without any
--   full_at_us    with a rate: when `burst` messages may be taken again, microseconds since the epoch
--   watcher       with a rate: the consumer that comes when the next message may be taken
--   watched_us    when that is, microseconds since the epoch
--   concurrency   how many messages may be unacked together
--   fair          "on" or "off" if the queue is fair (fair.lua); fair_limits.lua has what is allowed for keys
--   held_back     how many takes were throttled: they left ready messages where they were because of this
-- Without a limit, its field is missing. Most queues have no such hash. A value that is no number_in(), or
-- a key that is no hash, was written by another program, and counts as missing: an error would stop all
-- queues of a consumer.
--
-- If every consumer came when a rate allows the next message, all but one would find nothing. So one of the
-- idle consumers watches: only it is told when to come. A consumer that takes a message wakes another one,
-- which watches next. If a watcher dies, the next consumer that looks finds that the time is over.

-- include: number
-- include: woken

-- How many messages of a queue are unacked, counted up to `most`.
local function count_unacked(queue, unacked_prefix, most)
  local count = 0
  for _, consumer in ipairs(redis.call('ZRANGE', queue.consumers, 0, -1)) do
    count = count + redis.call('HLEN', unacked_prefix .. consumer)
    if count >= most then
      break
    end
  end
  return count
end

-- Finds out how many messages may be taken from a queue now: by its rate `queue.tokens`, and `queue.permits`
-- by how many are unacked. Nothing is written.
local function read_limits_of(queue, limits_key, unacked_prefix, now_us)
  local fields = redis.pcall(
    'HMGET',
    limits_key,
    'paused_ms',
    'interval_us',
    'burst',
    'full_at_us',
    'concurrency',
    'watcher',
    'watched_us',
    'fair'
  )
  if fields.err then
    return
  end
  local paused_ms, interval_us, burst, full_at_us, concurrency, watcher, watched_us, state = unpack(fields)
  queue.is_limited = true
  queue.fair = (state == 'on' or state == 'off') and state or nil
  interval_us, burst, concurrency = number_in(interval_us), number_in(burst), number_in(concurrency)
  if interval_us and burst then
    full_at_us = math.max(number_in(full_at_us) or 0, now_us)
    if full_at_us > now_us + burst * interval_us then
      -- The clock was set, or the rate was changed.
      full_at_us, queue.is_put_right = now_us + burst * interval_us, true
    end
    queue.interval_us, queue.burst, queue.full_at_us = interval_us, burst, full_at_us
    queue.tokens = math.floor(burst - (full_at_us - now_us) / interval_us)
    queue.watcher, queue.watched_us = watcher, tonumber(watched_us)
  end
  if number_in(paused_ms) then
    queue.is_paused, queue.permits = true, 0
  elseif concurrency and queue.needs_ack then
    queue.permits = math.max(0, concurrency - count_unacked(queue, unacked_prefix, concurrency))
    queue.has_permits = true
  end
end

-- As read_limits_of(), for those of the queues that have a control.
local function read_limits(queues, now_us)
  local keys = {}
  for i, queue in ipairs(queues) do
    keys[i] = queue.base .. 'control'
    queue.tokens, queue.permits = math.huge, math.huge
  end
  local count = count_existing(keys, 1, #keys)
  -- For most consumers, this is all.
  if count == 0 then
    return
  end
  for i, queue in ipairs(queues) do
    if count == #keys or redis.call('EXISTS', keys[i]) == 1 then
      read_limits_of(queue, keys[i], queue.base .. 'unacked:', now_us)
    end
  end
end

local function may_take(queue)
  return queue.tokens > 0 and queue.permits > 0
end

-- Notes that one message is taken.
local function count_against(queue)
  queue.tokens, queue.permits = queue.tokens - 1, queue.permits - 1
end

-- When a message may be taken from a queue whose rate does not allow one now, microseconds since the epoch.
local function token_at_us(queue)
  return math.ceil(queue.full_at_us - (queue.burst - 1) * queue.interval_us)
end

-- Whether only the rate throttles the queue, and no other consumer comes when it allows the next message. If
-- messages were taken since, or the rate was changed, the other one watches for the wrong time.
local function is_unwatched(queue, consumer)
  if queue.tokens > 0 or queue.permits <= 0 then
    return false
  end
  return not queue.watcher or queue.watcher == consumer or queue.watched_us ~= token_at_us(queue)
end

-- Microseconds until then.
local function until_token_us(queue, now_us)
  return math.max(1, token_at_us(queue) - now_us)
end

-- A free permit wakes one consumer, which may not know the task of what waits. So a consumer that knows it
-- looks at this interval while there is no permit.
local PERMIT_US = 25000

-- Microseconds until such a look; -1 if it is not needed.
local function until_permit_us(queue)
  return queue.has_permits and queue.permits <= 0 and PERMIT_US or -1
end

-- Has the consumer watch. A server that is out of memory may refuse that: then others come, too.
local function watch(queue, consumer)
  local at_us = string.format('%.0f', token_at_us(queue))
  redis.pcall('HSET', queue.base .. 'control', 'watcher', consumer, 'watched_us', at_us)
end

-- Leaves it to another consumer, which has to be woken.
local function stop_watching(queue, consumer)
  if queue.watcher == consumer then
    redis.call('HDEL', queue.base .. 'control', 'watcher', 'watched_us')
  end
end

-- The sooner one of two times from now on, where -1 is never.
local function sooner(a_us, b_us)
  return (a_us < 0 or b_us < 0) and math.max(a_us, b_us) or math.min(a_us, b_us)
end

-- Notes for all consumers how many messages were taken from a queue, and whether the take was throttled.
local function spend(queue, how_many, is_throttled)
  if not queue.is_limited then
    return
  end
  if queue.interval_us and (how_many > 0 or queue.is_put_right) then
    -- Rounded up: never more than the rate.
    queue.full_at_us = math.ceil(queue.full_at_us + how_many * queue.interval_us)
    -- Removed first, so that a full Redis allows it: a take may have written nothing yet.
    redis.call('HDEL', queue.base .. 'control', 'full_at_us')
    redis.call('HSET', queue.base .. 'control', 'full_at_us', string.format('%.0f', queue.full_at_us))
  end
  if is_throttled then
    -- An error if another program has written something else there.
    redis.pcall('HINCRBY', queue.base .. 'control', 'held_back', 1)
  end
end
