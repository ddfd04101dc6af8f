-- Whether the bindings of an exchange are the ones that the publisher has found its queue by: those in
-- ARGV from `first` on, if there are any.
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
