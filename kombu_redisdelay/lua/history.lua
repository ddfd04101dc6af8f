-- Reads the history of a queue. Writes nothing.
--
-- KEYS[1]  history
-- KEYS[2]  schedule
-- KEYS[3+] ready lists of all steps
--
-- Returns  server's clock in ms; how many messages are ready or scheduled; delivered, failed, dead, dropped,
--          replaced, failed_tasks, failed_dropped, returned, continuations, other, published, flow, minute,
--          hour, minutes and hours, as they are in the history (nil: it has none)

-- include: clock
-- include: length

local FIELDS = {
  'delivered', 'failed', 'dead', 'dropped', 'replaced', 'failed_tasks', 'failed_dropped', 'returned',
  'continuations', 'other', 'published', 'flow', 'minute', 'hour', 'minutes', 'hours',
}

return {
  clock_ms(),
  length({ unpack(KEYS, 3) }, KEYS[2]),
  unpack(redis.call('HMGET', KEYS[1], unpack(FIELDS))),
}
