-- The unique key that a message has, as its publisher wrote it: see unique.lua.

-- include: members

-- Our publisher writes printable ASCII. Anything else, by another program, is no key.
local UNIQUE = '^"redisdelay%-unique": ?%["([wdl])", ?"([ !#-~]*)", ?"([ !#-~]*)"%]'
-- The same from the beginning of a message that was never redelivered. Most messages match it.
local FIRST_TIME = '^{"redisdelay%-due": ?%d+, ?' .. string.sub(UNIQUE, 2)
-- A script that moves a message with a key also moves the key, which takes as long as several messages. Where
-- the bytes of a script are limited, the key counts as this number of them. broker/unique.py has the same.
local BYTES_OF_KEY = 4096

-- Mode, id and key of a message; nothing if it has no key.
local function unique_of(stored, start)
  local mode, id, key = string.match(stored, FIRST_TIME, start)
  if mode then
    return mode, id, key
  end
  local _, brace, rest = members_of(stored, start)
  if brace then
    -- Behind the key of a fair queue.
    local _, last = string.find(stored, '^"redisdelay%-key": ?"[^"]*", ?', rest)
    return string.match(stored, UNIQUE, last and last + 1 or rest)
  end
end
