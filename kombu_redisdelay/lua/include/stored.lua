-- A message in a hash is stored as "<priority step>:<payload>", so that it finds its way back to the
-- ready list that it came from. A value that we did not store goes to the list of step 0. The consumer that
-- takes it finds out that it is not a message. A longer number is no step of ours: a dead letter that told it
-- could not be read.
local LONGEST_STEP = 9
local function stored_step(stored)
  local step = string.match(stored, '^(%d+):')
  return step and #step <= LONGEST_STEP and step or '0'
end

-- Where the payload begins.
local function stored_start(stored)
  local _, last = string.find(stored, '^%d+:')
  return (last or 0) + 1
end

local function stored_payload(stored)
  return string.sub(stored, stored_start(stored))
end

-- kombu's own layout: the list of step 0 is the queue's name, the others have the step appended.
local function ready_key(queue_key, separator, step)
  if step == '0' then
    return queue_key
  end
  return queue_key .. separator .. step
end
