-- Looks for the keys of a fair queue that have most messages (include/fair.lua). Writes nothing. Bounded: it
-- looks at some keys, and says where to go on.
--
-- KEYS[1]  limits (hash `control`)
-- ARGV[1]  which keys: the step of turns, or "limited"
-- ARGV[2]  where to begin, "0" at first
-- ARGV[3]  how many keys to look at, roughly
-- ARGV[4]  how many messages a key must have
-- ARGV[5+] the priority steps
--
-- Returns  where to go on, "0" at the end; then the keys with at least ARGV[4] messages in all steps, each
--          with their number

-- include: base
-- include: fair

local base, least, steps = base_of(KEYS[1]), tonumber(ARGV[4]), { unpack(ARGV, 5) }
local scanned
if ARGV[1] == 'limited' then
  scanned = redis.call('HSCAN', base .. 'limited', ARGV[2], 'COUNT', ARGV[3])
else
  scanned = redis.call('ZSCAN', base .. 'turns:' .. ARGV[1], ARGV[2], 'COUNT', ARGV[3])
end
local found, pairs_of_key = { scanned[1] }, scanned[2]
for i = 1, #pairs_of_key, 2 do
  local key, count = pairs_of_key[i], 0
  for _, step in ipairs(steps) do
    count = count + redis.call('LLEN', key_list(base, step, key))
  end
  if count >= least then
    found[#found + 1] = key
    found[#found + 1] = count
  end
end
return found
