-- A message in a hash is stored as "<priority step>:<payload>", so that it finds its way back to the
-- ready list that it came from. Both read a part of it; neither looks into the payload.
local function stored_step(stored)
  return string.sub(stored, 1, string.find(stored, ':', 1, true) - 1)
end

local function stored_payload(stored)
  return string.sub(stored, string.find(stored, ':', 1, true) + 1)
end

-- kombu's own layout: the list of step 0 is the queue's name, the others have the step appended.
local function ready_key(queue_key, separator, step)
  if step == '0' then
    return queue_key
  end
  return queue_key .. separator .. step
end
