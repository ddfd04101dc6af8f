-- Reads what there is of some keys of a fair queue (include/fair.lua). Writes nothing.
--
-- KEYS[1]  limits (hash `control`)
-- ARGV[1]  how many priority steps
-- ARGV[2+] the steps, then the keys
--
-- Returns  for each key a list: how many of its messages are unacked (nil: they are not counted); its own
--          limits, as include/fair_at_limit.lua has them (nil: none); 1 if none of its messages may be taken
--          now; its turns while it waits for that, as include/fair.lua has them (nil: it does not); then for
--          each step how many messages it has, and when its next turn begins (nil: it has none)

-- include: base
-- include: fair_look

local base, steps = base_of(KEYS[1]), { unpack(ARGV, 2, 1 + ARGV[1]) }
local keys = { unpack(ARGV, 2 + ARGV[1]) }
local fair = look_at_limits(base)
read_keys(fair, keys)
local reply = {}
for _, key in ipairs(keys) do
  local limited = redis.call('HGET', base .. 'limited', key)
  local state = {
    redis.call('HGET', base .. 'active', key),
    redis.call('HGET', base .. 'key-limits', key),
    (limited or is_at_limit(fair, key)) and 1 or 0,
    limited,
  }
  for _, step in ipairs(steps) do
    state[#state + 1] = redis.call('LLEN', key_list(base, step, key))
    state[#state + 1] = redis.call('ZSCORE', base .. 'turns:' .. step, key)
  end
  reply[#reply + 1] = state
end
return reply
