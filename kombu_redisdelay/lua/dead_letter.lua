-- Moves a message that cannot be delivered to the dead letters.
--
-- KEYS[1]  unacked of the consumer
-- KEYS[2]  dead
-- ARGV[1]  delivery tag ("": it was consumed without acks, and is nowhere)
-- ARGV[2]  priority step
-- ARGV[3]  why, one line
-- ARGV[4]  message
--
-- Keeps: the message is in exactly one place. One that is not held any more belongs to somebody else.

-- include: clock
-- include: dead
-- include: deliveries

if ARGV[1] == '' or redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
  bury(KEYS[2], deliveries(ARGV[4]), ARGV[2], ARGV[3], ARGV[4])
end
