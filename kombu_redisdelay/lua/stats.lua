-- Counts the messages and consumers of a queue. Writes nothing, and so works on a server that is out of
-- memory, where a transaction fails.
--
-- KEYS[1]  schedule
-- KEYS[2]  consumers
-- KEYS[3]  wake zset
-- KEYS[4]  limits (hash `control`)
-- KEYS[5]  unknown
-- KEYS[6]  dead, the list where an older release keeps dead letters
-- KEYS[7+] index of each state in the archive (include/archive.lua); then ready lists of all steps
-- ARGV[1]  beginning of the keys of unacked hashes; the name of the consumer follows
-- ARGV[2+] names of the states in the archive
--
-- Returns  for each number its name, and then the number:
--   ready, scheduled, overdue, unacked    messages, and those in each state of the archive
--   blocked          scheduled messages that wait for their keys (include/unique.lua)
--   consumers, consumers_lost             with a lease; and whose lease has ended, and that hold messages
--   due_ms           when the first scheduled message is due, as text, ms since the epoch (nil: none)
--   late_us          for how long it has been due, microseconds (0: it is not due yet)
--   now_us           the server's clock, microseconds
--   returned, finished                    tasks among the failed ones that have returned; lines
--   dropped, replaced                     messages, since the history of the queue began
-- and these, each 1 or 0
--   is_paused        the queue is paused
--   has_no_permit, has_no_token           its concurrency, or its rate, allows no message now
--   has_waker        a wake-up token is there
--   has_unknown      messages may wait for a worker that knows their task

-- include: clock
-- include: limits
-- include: length

local now_us = clock_us()
local now_ms = now_us / 1000
local queue = { base = base_of(KEYS[4]), consumers = KEYS[2], needs_ack = true }
read_limits({ queue }, now_us)

local states = { unpack(ARGV, 2) }
local ready = sorted_by_key(queue.base)
for i = 7 + #states, #KEYS do
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
local reply = {}
local function add(name, value)
  reply[#reply + 1], reply[#reply + 2] = name, value
end

for i, state in ipairs(states) do
  add(state, redis.call('ZCARD', KEYS[6 + i]) + (state == 'dead' and redis.call('LLEN', KEYS[6]) or 0))
end
add('ready', ready)
add('scheduled', redis.call('ZCARD', KEYS[1]))
add('overdue', redis.call('ZCOUNT', KEYS[1], '-inf', now_ms))
add('unacked', unacked)
add('blocked', redis.call('ZCOUNT', KEYS[1], '+inf', '+inf'))
add('consumers', alive)
add('consumers_lost', lost)
add('due_ms', due_ms or false)
add('late_us', due_ms and math.max(0, now_us - due_ms * 1000) or 0)
add('now_us', now_us)
add('returned', redis.call('ZCARD', queue.base .. 'failed:returned'))
add('finished', redis.call('LLEN', queue.base .. 'finished'))
add('dropped', number_in(conflicts[1]) or 0)
add('replaced', number_in(conflicts[2]) or 0)
add('is_paused', queue.is_paused and 1 or 0)
add('has_no_permit', queue.permits <= 0 and 1 or 0)
add('has_no_token', queue.tokens <= 0 and 1 or 0)
add('has_waker', redis.call('EXISTS', KEYS[3]))
add('has_unknown', redis.call('EXISTS', KEYS[5]))
return reply
