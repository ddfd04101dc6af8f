-- How long a message that has failed waits until it is tried again. The transport option `retry_wait` is the
-- first wait; each later one is twice as long.

-- The longest wait, unless the first one is longer.
local LONGEST_WAIT_MS = 60000

-- How long a message waits after this number of failures, ms.
local function wait_before_retry_ms(failures, queue)
  if queue.delay_ms then
    return queue.delay_ms
  end
  if failures < 2 then
    return 0
  end
  local first_ms = queue.retry_wait_ms
  return math.min(math.max(LONGEST_WAIT_MS, first_ms), first_ms * 2 ^ math.min(failures - 2, 30))
end
