-- Removes all failed tasks of a queue, unless some are known to have returned.
--
-- KEYS[1]  failed
--
-- Returns  how many there were; nil if some have returned: then nothing was done

-- include: base
-- include: failed

local keys = failed_keys(base_of(KEYS[1]))
if redis.call('ZCARD', keys.returned) > 0 then
  return nil
end
local count = redis.call('ZCARD', keys.list)
unlink_rest(keys)
redis.call('UNLINK', keys.list)
return count
