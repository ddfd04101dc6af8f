-- Removes dead letters from their list: for good, or back to the tail of the ready list that they came from,
-- as if they had never been delivered.
--
-- KEYS[1]  dead
-- KEYS[2]  ready list of step 0
-- KEYS[3]  wake zset
-- ARGV[1]  "requeue", or "drop"
-- ARGV[2]  separator between a queue's name and a priority step
-- ARGV[3+] the dead letters as they are in the list, the oldest first
--
-- Returns  for each: 1 if it was there, else 0; or the id of the message that holds its key. Then it is still
--          there
--
-- Keeps: the message is in exactly one place, or dropped.

-- include: base
-- include: expect
-- include: clock
-- include: wake
-- include: stored
-- include: members
-- include: dead
-- include: history
-- include: unique

local base = base_of(KEYS[3])
local function list_of(step)
  return ready_key(KEYS[2], ARGV[2], step)
end

-- The record of a message's key, nil if it has none; the id of the message; and the message that holds the
-- key, nil if none does.
local function key_and_holder(payload)
  local mode, id, key = unique_of(payload, 1)
  if not mode then
    return nil
  end
  local record = read_record(base, key, mode)
  heal(record, clock_ms(), list_of)
  identify(record)
  return record, id, record.running or record.current or record.next
end

local reply, requeued = {}, 0
for i = 3, #ARGV do
  local step, payload = dead_step_and_payload(ARGV[i])
  local ready, record, id, holder
  if ARGV[1] == 'requeue' then
    ready = list_of(step)
    expect_list(ready)
    record, id, holder = key_and_holder(payload)
  end
  -- From the tail, where the oldest are.
  reply[#reply + 1] = holder and holder.id or redis.call('LREM', KEYS[1], -1, ARGV[i])
  if ready and reply[#reply] == 1 then
    redis.call('LPUSH', ready, with_members(payload, 1, { due = clock_ms() }))
    requeued = requeued + 1
    if record then
      record.current = entry_at('r', step, clock_ms(), id)
      write_record(record)
    end
  end
end
if requeued > 0 then
  note(KEYS[3], 'other', requeued)
  wake(KEYS[3])
end
return reply
