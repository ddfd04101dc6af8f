-- Whether the bindings of an exchange are still those by which the publisher has found the queue. ARGV has
-- these from `first` on; if it has none, any bindings will do.
local function still_bound(table_key, first)
  if #ARGV < first then
    return true
  end
  if redis.call('SCARD', table_key) ~= #ARGV - first + 1 then
    return false
  end
  for i = first, #ARGV do
    if redis.call('SISMEMBER', table_key, ARGV[i]) == 0 then
      return false
    end
  end
  return true
end
