-- Reads what there is of some keys of a fair queue (include/fair.lua). Writes nothing.
--
-- KEYS[1]  limits (hash `control`)
-- ARGV[1]  how many priority steps
-- ARGV[2+] the steps, then the keys
--
-- Returns  for each key a list: how many of its messages are unacked (nil: they are not counted); its own
--          limits, as include/fair_limits.lua has them (nil: none); its turns while it is at a limit, as
--          include/fair.lua has them (nil: it is not); then for each step how many messages it has, and when
--          its next turn begins (nil: it has none)

-- include: base
-- include: fair

local base, steps = base_of(KEYS[1]), { unpack(ARGV, 2, 1 + ARGV[1]) }
local reply = {}
for i = 2 + ARGV[1], #ARGV do
  local key = ARGV[i]
  local state = {
    redis.call('HGET', base .. 'active', key),
    redis.call('HGET', base .. 'key-limits', key),
    redis.call('HGET', base .. 'limited', key),
  }
  for _, step in ipairs(steps) do
    state[#state + 1] = redis.call('LLEN', key_list(base, step, key))
    state[#state + 1] = redis.call('ZSCORE', base .. 'turns:' .. step, key)
  end
  reply[#reply + 1] = state
end
return reply
