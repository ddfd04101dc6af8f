-- Reads lists in bounded portions. Positions are counted from the left end, from 0 on.

-- Calls visit(entry, position) for the entries from position `from` to position `to`, in the direction
-- `step`, 1 or -1, until it returns a true value, or `count_limit` entries or about `byte_limit` bytes were
-- read. To find a position in the middle of a long list takes Redis up to a millisecond, so entries are not
-- read one by one. But they may be large: so the first is, and its size tells how many may be read at once.
local function read_list(list, from, to, step, count_limit, byte_limit, visit)
  local count, bytes, at_once = 0, 0, 1
  while (to - from) * step >= 0 and count < count_limit and bytes < byte_limit do
    local reach = from + step * (math.min(at_once, count_limit - count, (to - from) * step + 1) - 1)
    local some = redis.call('LRANGE', list, math.min(from, reach), math.max(from, reach))
    if #some == 0 then
      return
    end
    for i = 1, #some do
      local entry = step > 0 and some[i] or some[#some + 1 - i]
      count, bytes = count + 1, bytes + #entry
      if visit(entry, from + step * (i - 1)) then
        return
      end
    end
    from = from + step * #some
    at_once = math.max(1, math.min(count * 8, math.floor((byte_limit - bytes) / (bytes / count + 1))))
  end
end

-- By what an entry is known again. kombu writes the delivery tag, which no other message has, near the end.
local LONGEST_MARK = 4096

local function mark_of(entry)
  if #entry <= LONGEST_MARK then
    return entry
  end
  return #entry .. string.sub(entry, 1, LONGEST_MARK / 2) .. string.sub(entry, -LONGEST_MARK / 2)
end

-- The marks and positions of up to three of the leftmost entries, messages with a delivery tag first: others
-- may be there more than once.
local BOOKMARKS, CANDIDATES = 3, 16

local function make_bookmarks(list, byte_limit)
  local tagged, others = {}, {}
  read_list(list, 0, CANDIDATES - 1, 1, CANDIDATES, byte_limit, function(entry, position)
    local kind = string.find(entry, '"delivery_tag"', 1, true) and tagged or others
    kind[#kind + 1] = { mark_of(entry), position }
    return #tagged == BOOKMARKS
  end)
  local made = {}
  for _, bookmark in ipairs(#tagged > 0 and tagged or others) do
    if #made < 2 * BOOKMARKS then
      made[#made + 1] = bookmark[1]
      made[#made + 1] = bookmark[2]
    end
  end
  return made
end
