-- Reads some dead letters, the newest first. Writes nothing.
--
-- KEYS[1]  dead letters
-- ARGV[1]  how many of the oldest ones are left to read, or "": all
-- ARGV[2]  how many at most
-- ARGV[3]  how many bytes, roughly
--
-- Returns  how many of the oldest ones are left then, and these dead letters
--
-- Positions are counted from the right end, where the oldest one is. New ones are added at the left end, and
-- shift no position.

-- include: list_reader

local length = redis.call('LLEN', KEYS[1])
local left = ARGV[1] == '' and length or math.min(length, tonumber(ARGV[1]))
local letters = {}
read_list(KEYS[1], length - left, length - 1, 1, tonumber(ARGV[2]), tonumber(ARGV[3]), function(letter)
  letters[#letters + 1] = letter
end)
return { left - #letters, letters }
