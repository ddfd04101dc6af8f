-- Moves messages that workers of redis:// had taken to where they belong: into the schedule, or to the head
-- of their ready lists. There they count as delivered once more, as after a worker of ours was lost.
--
-- KEYS[1]  unacked hash of redis://
-- KEYS[2]  unacked index of redis://
-- KEYS[3+] five for each queue: ready list of step 0, wake zset, schedule, messages, duplicates
-- ARGV[1]  separator between a queue's name and a priority step
-- ARGV[2+] seven for each message: its field in the hash; what is there; the message, as it is to be stored
--          (see include/stored.lua); message id; due time, ms since the epoch, with a fraction ("": it is
--          ready); "1" if a task has published itself again, as retry() does; the numbers of its queues,
--          separated by spaces
--
-- Returns  for each: 1 if it was moved; 0 if the hash has it no more; -1 if a key of a queue has a wrong type
--
-- Keeps: a message leaves the hash only into all its queues, in the same step. A worker of redis:// that acks
-- it or gives it back meanwhile has taken it out of the hash, and then it is left alone.

-- include: arrive
-- include: history

local KEYS_PER_QUEUE, ARGS_PER_MESSAGE = 5, 7
local now_ms = clock_us() / 1000

local function queue_at(number)
  local first = 3 + (number - 1) * KEYS_PER_QUEUE
  return {
    base = base_of(KEYS[first + 1]),
    ready = KEYS[first],
    wake = KEYS[first + 1],
    schedule = KEYS[first + 2],
    messages = KEYS[first + 3],
    duplicates = KEYS[first + 4],
    separator = ARGV[1],
    expires_ms = 0,
  }
end

local function is_usable(queue, step)
  for key, command in pairs({
    [list_in(queue, step)] = 'LLEN',
    [queue.schedule] = 'ZCARD',
    [queue.messages] = 'HLEN',
    [queue.duplicates] = 'ZCARD',
  }) do
    if type(redis.pcall(command, key)) == 'table' then
      return false
    end
  end
  return true
end

local function arrive(message, due_ms, is_continued)
  local queue, stored, start = message.queue, message.stored, message.start
  if due_ms == '' then
    local payload = with_members(stored, start, { deliveries = deliveries(stored, start) + 1 })
    becomes_ready(message, 'head', payload, now_ms)
    wake(queue.wake)
  else
    becomes_scheduled(message, message.id, due_ms, stored, now_ms, is_continued == '1' and 'a' or 's')
  end
  note(queue.wake, 'other', 1)
end

local function adopt(field, found, stored, id, due_ms, is_continued, numbers)
  if redis.call('HGET', KEYS[1], field) ~= found then
    return 0
  end
  local messages = {}
  for number in string.gmatch(numbers, '%d+') do
    local message = other_message(queue_at(tonumber(number)), stored, id)
    if not is_usable(message.queue, message.step) then
      return -1
    end
    expect_right('RPUSH', list_in(message.queue, message.step), '')
    expect_rights_to_schedule(message.queue.schedule, message.queue.messages)
    messages[#messages + 1] = message
  end
  redis.call('HDEL', KEYS[1], field)
  redis.call('ZREM', KEYS[2], field)
  for _, message in ipairs(messages) do
    arrive(message, due_ms, is_continued)
  end
  return 1
end

redis.call('ZCARD', KEYS[2])
local reply = {}
for i = 2, #ARGV, ARGS_PER_MESSAGE do
  reply[#reply + 1] = adopt(unpack(ARGV, i, i + ARGS_PER_MESSAGE - 1))
end
return reply
