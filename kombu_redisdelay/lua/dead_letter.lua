-- Moves a message that will not be delivered again to the dead letters.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  dead
-- ARGV[1]  delivery tag ("": it was consumed without acks, and is stored nowhere)
-- ARGV[2]  why, one line
-- ARGV[3]  how many dead letters the queue keeps
-- ARGV[4]  without a tag: "<priority step>:<message>"
-- ARGV[5]  1 if it was delivered now, which counts; 0 if it cannot be delivered
--
-- Returns  1 if it was unacked, else 0; how many older dead letters were dropped for it
--
-- Keeps: the message is in exactly one place. A message that is not unacked any more is in another place by
-- now, and is left there.

-- include: dead
-- include: expect
-- include: leave
-- include: history

local base = base_of(KEYS[2])
local queue = { base = base, unacked = KEYS[1], counts_keys = counts_keys(base) }
expect_list(KEYS[2], 'LPUSH')
local message = ARGV[1] == '' and copied(queue, ARGV[4]) or unacked_message(queue, ARGV[1])
if not message then
  return { 0, 0 }
end
-- Also without a tag: so a full Redis allows what follows.
leave(message)
local count = deliveries(message.stored, message.start) + tonumber(ARGV[5])
local dropped = add_dead_letter(KEYS[2], tonumber(ARGV[3]), count, ARGV[2], message.stored)
note(KEYS[2], 'dead', 1)
is_over(message, clock_us() / 1000)
return { 1, dropped }
