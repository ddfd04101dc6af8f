-- Reads some entries of a list from its right end to its left end, while others add to either end and take
-- from the right one. Writes nothing. The caller goes on from page to page, and says how far it has come.
--
-- Positions are counted from the left end, because taking does not shift them there. Adding to the left end
-- does: so the caller keeps bookmarks, which are some of the leftmost entries, and where they were. The
-- positions that it gives and gets are those of the moment when the bookmarks were made.
--
-- KEYS     lists that are taken from before this one; the last key is the list
-- ARGV     see below, by their names
--
-- Returns  { "look", where to look for the bookmarks from in the next call }; or { "lost" }: there are none;
--          or { "page", position of the next entry ("": there are no more), position of the last one, mark of
--          the last one that was read, 1 if every entry to the right of these is known to have been read
--          before, new bookmarks as in ARGV (empty: they stay), entries }. Each entry has two elements: how
--          many are taken before it, and the entry

-- include: list_reader
-- include: contains

local
  -- "": this is the first page; else the position of the next entry.
  next_position,
  -- The position of the last entry to read.
  last_position,
  -- Mark of the entry that was read before it.
  mark,
  -- On the first page, how many entries to pass over; else where to look for the bookmarks from, counted from
  -- the left end as it is now.
  look_from,
  -- How many entries at most, to look for bookmarks among and to read.
  count_limit,
  -- How many bytes, roughly.
  byte_limit,
  -- How many bookmarks and texts. They are the last of ARGV: for each bookmark its mark and its position,
  -- then the texts. Entries that contain none of the texts are left out, unless there are no texts.
  bookmark_count,
  text_count = unpack(ARGV)

local list, length = KEYS[#KEYS], redis.call('LLEN', KEYS[#KEYS])
count_limit, byte_limit = tonumber(count_limit), tonumber(byte_limit)
local first_text = #ARGV - text_count + 1
local bookmarks, texts = {}, { unpack(ARGV, first_text) }
for i = first_text - 2 * bookmark_count, first_text - 2, 2 do
  -- Of equal ones, the leftmost: so a position is never too far to the left, and nothing is skipped.
  bookmarks[ARGV[i]] = bookmarks[ARGV[i]] or tonumber(ARGV[i + 1])
end

local is_first = next_position == ''
local shift, found_position = 0, nil
if not is_first then
  local looked_until = length
  read_list(list, tonumber(look_from), length - 1, 1, count_limit, byte_limit, function(entry, position)
    looked_until = position + 1
    found_position = bookmarks[mark_of(entry)]
    shift = found_position and position - found_position
    return found_position
  end)
  if not found_position then
    return looked_until < length and { 'look', looked_until } or { 'lost' }
  end
end

local position = length - 1 - (is_first and look_from or 0)
local stop = is_first and 0 or math.max(0, last_position + shift)
local is_sure = is_first
if not is_first then
  local expected = next_position + shift
  position = math.min(position, expected)
  local before = position == expected and redis.call('LINDEX', list, position + 1)
  is_sure = before and mark_of(before) == mark
end

local taken_before = length - 1
for i = 1, #KEYS - 1 do
  taken_before = taken_before + redis.call('LLEN', KEYS[i])
end
local entries, last_mark = {}, mark
if position >= stop then
  local last
  read_list(list, position, stop, -1, count_limit, byte_limit, function(entry, at)
    position, last = at - 1, entry
    if contains_any(entry, texts) then
      entries[#entries + 1] = taken_before - at
      entries[#entries + 1] = entry
    end
  end)
  last_mark = mark_of(last)
end

local new_bookmarks, new_stop = {}, stop - shift
if is_first or shift >= 64 or found_position > 0 then
  new_bookmarks = make_bookmarks(list, byte_limit)
  -- Up to the left end as it is now. What was the left end before cannot be counted from the new bookmarks:
  -- when an entry between them is removed, its position would be too far to the right, and it would be
  -- skipped.
  shift, new_stop = 0, 0
end
return {
  'page',
  position >= new_stop + shift and position - shift or '',
  new_stop,
  last_mark,
  is_sure and 1 or 0,
  new_bookmarks,
  entries,
}
