-- Reads how the messages of a fair queue wait (include/fair.lua). Writes nothing. Bounded: of many keys that
-- have a turn, it looks at the first ones. A take finds a key that is at a limit when its turn comes; where
-- all consumers are full, this is found here.
--
-- KEYS[1]  limits (hash `control`)
-- KEYS[2+] ready lists
-- ARGV[1]  how many keys of each step to look at
-- ARGV[2]  how many keys to name
-- ARGV[3+] the priority step of each ready list
--
-- Returns  how many keys wait at a limit; some of these, each followed by its turns; then for each step a
--          list: how many messages are not sorted, how many keys have a turn, how many of these have no
--          messages, how many may not be served now, and the keys that are next

-- include: base
-- include: fair_look

local most, most_named, base = tonumber(ARGV[1]), tonumber(ARGV[2]), base_of(KEYS[1])
local fair = look_at_limits(base)

local function read_order(unsorted, step)
  local zset = base .. 'turns:' .. step
  local keys = redis.call('ZRANGE', zset, 0, most - 1)
  read_keys(fair, keys)
  local empty, at_limit, next_keys = 0, 0, {}
  for _, key in ipairs(keys) do
    if redis.call('EXISTS', key_list(base, step, key)) == 0 then
      empty = empty + 1
    elseif is_at_limit(fair, key) then
      at_limit = at_limit + 1
    elseif #next_keys < most_named then
      next_keys[#next_keys + 1] = key
    end
  end
  return { redis.call('LLEN', unsorted), redis.call('ZCARD', zset), empty, at_limit, unpack(next_keys) }
end

local limited = base .. 'limited'
local reply = { redis.call('HLEN', limited), redis.call('HSCAN', limited, '0', 'COUNT', most_named)[2] }
for i = 2, #KEYS do
  reply[#reply + 1] = read_order(KEYS[i], ARGV[i + 1])
end
return reply
