-- Counts the messages and consumers of a queue. Writes nothing, and so works on a server that is out of
-- memory, where a transaction fails.
--
-- KEYS[1]  schedule
-- KEYS[2]  consumers
-- KEYS[3]  wake zset
-- KEYS[4]  limits (hash `control`)
-- KEYS[5]  unknown
-- KEYS[6+] lists of what is kept, such as dead letters; then ready lists of all steps
-- ARGV[1]  beginning of the keys of unacked hashes; the name of the consumer follows
-- ARGV[2]  how many lists of what is kept there are
--
-- Returns  a list of how many messages each list of what is kept has; ready, scheduled, overdue and unacked
--          messages; consumers; consumers whose lease has ended and that hold messages; due time of the first
--          scheduled message, as text, ms since the epoch (nil: none); microseconds for which it has been due
--          (0: it is not due yet); server's clock in microseconds; failed tasks; how many of these are known
--          to have returned; lines about finished tasks; how many scheduled messages wait for their keys
--          (include/unique.lua); how many were dropped and replaced since the history of the queue began;
--          then 1 or 0 for each of: the queue is paused, its concurrency allows no message now, its rate
--          allows none, a wake-up token is there, messages may wait for a worker that knows their task

-- include: clock
-- include: limits
-- include: length

local now_us = clock_us()
local now_ms = now_us / 1000
local queue = { base = base_of(KEYS[4]), consumers = KEYS[2], needs_ack = true }
read_limits({ queue }, now_us)

local kept = {}
for i = 6, 5 + ARGV[2] do
  kept[#kept + 1] = redis.call('LLEN', KEYS[i])
end

local ready = sorted_in(queue.base)
for i = 6 + #kept, #KEYS do
  ready = ready + redis.call('LLEN', KEYS[i])
end

local unacked, alive, lost = 0, 0, 0
local consumers = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
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
if due_ms == 'inf' then
  due_ms = nil
end
local conflicts = redis.pcall('HMGET', queue.base .. 'history', 'dropped', 'replaced')
return {
  kept,
  ready,
  redis.call('ZCARD', KEYS[1]),
  redis.call('ZCOUNT', KEYS[1], '-inf', now_ms),
  unacked,
  alive,
  lost,
  due_ms or false,
  due_ms and math.max(0, now_us - due_ms * 1000) or 0,
  now_us,
  redis.call('ZCARD', queue.base .. 'failed'),
  redis.call('ZCARD', queue.base .. 'failed:returned'),
  redis.call('LLEN', queue.base .. 'finished'),
  redis.call('ZCOUNT', KEYS[1], '+inf', '+inf'),
  number_in(conflicts[1]) or 0,
  number_in(conflicts[2]) or 0,
  queue.is_paused and 1 or 0,
  queue.permits <= 0 and 1 or 0,
  queue.tokens <= 0 and 1 or 0,
  redis.call('EXISTS', KEYS[3]),
  redis.call('EXISTS', KEYS[5]),
}
