-- Finds the queues that have a wake-up token: something has become ready, and no consumer knows of it yet.

-- One command gets no more keys than this: Lua has a limited stack.
local KEYS_AT_ONCE = 1000
-- Where there is a token among this number of keys, each of them is looked at.
local GROUP = 16

-- How many of keys[first] to keys[last] exist.
local function count_existing(keys, first, last)
  local count = 0
  for start = first, last, KEYS_AT_ONCE do
    count = count + redis.call('EXISTS', unpack(keys, start, math.min(last, start + KEYS_AT_ONCE - 1)))
  end
  return count
end

-- The first `most` indices of `wake_keys` that exist, from index `from` on and then from the beginning.
-- `skipped` has true for the indices that are left out.
local function find_woken(wake_keys, skipped, from, most)
  local keys, indices = {}, {}
  for offset = 0, #wake_keys - 1 do
    local index = (from - 1 + offset) % #wake_keys + 1
    if not skipped[index] then
      keys[#keys + 1], indices[#keys + 1] = wake_keys[index], index
    end
  end
  local woken = {}
  local left = count_existing(keys, 1, #keys)
  for first = 1, #keys, GROUP do
    if left == 0 or #woken >= most then
      break
    end
    local last = math.min(#keys, first + GROUP - 1)
    local here = count_existing(keys, first, last)
    left = left - here
    for i = first, here > 0 and last or 0 do
      if #woken < most and redis.call('EXISTS', keys[i]) == 1 then
        woken[#woken + 1] = indices[i]
      end
    end
  end
  return woken
end
