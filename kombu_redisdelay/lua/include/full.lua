-- A Redis that is full refuses the first write of a script if that could need memory, and no later one: it
-- does not stop a script that has written. A command that removes is never refused, and counts as a write
-- also if it finds nothing to remove. So a script that must work in a full Redis removes first.

-- For a script that has nothing to remove: no hash of ours has a field without a name.
local function work_when_full(hash_key)
  redis.call('HDEL', hash_key, '')
end
