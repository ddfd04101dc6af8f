-- Counts the messages and consumers of a queue. Writes nothing, and so works on a server that is out of
-- memory, where a transaction fails.
--
-- KEYS[1]  schedule
-- KEYS[2]  dead
-- KEYS[3]  consumers
-- KEYS[4]  wake zset
-- KEYS[5]  limits (hash `control`)
-- KEYS[6]  unknown
-- KEYS[7+] ready lists of all steps
-- ARGV[1]  beginning of the keys of unacked hashes; the name of the consumer follows
--
-- Returns  ready, scheduled, overdue, unacked and dead messages; consumers; consumers whose lease has ended
--          and that hold messages; due time of the first scheduled message, as text, ms since the epoch
--          (nil: none); microseconds for which it has been due (0: it is not due yet); server's clock in
--          microseconds; then 1 or 0 for each of: the queue is paused, its concurrency allows no message now,
--          its rate allows none, a wake-up token is there, messages may wait for a worker that knows their
--          task

-- include: clock
-- include: woken
-- include: number
-- include: limits

local now_us = clock_us()
local now_ms = now_us / 1000
local queue = { base = string.sub(KEYS[5], 1, -#'control' - 1), consumers = KEYS[3], needs_ack = true }
read_limits({ queue }, now_us)

local ready = 0
for i = 7, #KEYS do
  ready = ready + redis.call('LLEN', KEYS[i])
end

local unacked, alive, lost = 0, 0, 0
local consumers = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
for i = 1, #consumers, 2 do
  local count = redis.call('HLEN', ARGV[1] .. consumers[i])
  unacked = unacked + count
  if tonumber(consumers[i + 1]) > now_ms then
    alive = alive + 1
  elseif count > 0 then
    lost = lost + 1
  end
end

local due_ms = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
return {
  ready,
  redis.call('ZCARD', KEYS[1]),
  redis.call('ZCOUNT', KEYS[1], '-inf', now_ms),
  unacked,
  redis.call('LLEN', KEYS[2]),
  alive,
  lost,
  due_ms or false,
  due_ms and math.max(0, now_us - due_ms * 1000) or 0,
  now_us,
  queue.is_paused and 1 or 0,
  queue.permits <= 0 and 1 or 0,
  queue.tokens <= 0 and 1 or 0,
  redis.call('EXISTS', KEYS[4]),
  redis.call('EXISTS', KEYS[6]),
}
