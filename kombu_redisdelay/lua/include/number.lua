-- The number that a field of the hash `control` holds; false or nil if it holds none. All of them are within
-- these bounds, as in broker/limits.py.
local function number_in(text)
  local number = tonumber(text)
  return number and number >= 1e-3 and number <= 1e21 and number
end
