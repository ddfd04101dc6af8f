-- What our keys of a queue begin with, from one of them that does not end with the name of a consumer.
local function base_of(key)
  return string.match(key, '^.*}:')
end
