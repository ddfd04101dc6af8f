-- Reads some entries of a list from its right end to its left end, while others add to either end and take
-- from the right one. Writes nothing. The caller goes on from page to page, and says how far it has come.
--
-- Places are counted from the left end, because taking does not shift them there. Adding to the left end
-- does: so the caller keeps bookmarks, which are some of the leftmost entries, and where they were. The
-- places that it gives and gets are those of the moment when the bookmarks were made.
--
-- KEYS     lists that are taken from before this one; the last key is the list
-- ARGV[1]  "": this is the first page; else the place of the next entry
-- ARGV[2]  the place of the last entry to read
-- ARGV[3]  mark of the entry that was read before it
-- ARGV[4]  on the first page, how many entries to pass over; else where to look for the bookmarks from,
--          counted from the left end as it is now
-- ARGV[5]  how many entries at most, to look for bookmarks among and to read
-- ARGV[6]  how many bytes, roughly
-- ARGV[7]  how many bookmarks
-- ARGV[8+] for each bookmark: its mark, its place. Then texts: entries that contain none of them are left
--          out, unless there are no texts
--
-- Returns  { "look", where to look for the bookmarks from in the next call }; or { "lost" }: they are gone;
--          or { "page", place of the next entry ("": there are no more), place of the last one, mark of the
--          last one that was read, 1 if every entry to the right of these is known to have been read before,
--          new bookmarks as in ARGV (empty: they stay), entries }. Each entry has two elements: how many are
--          taken before it, and the entry

-- include: list_reader

local list, length = KEYS[#KEYS], redis.call('LLEN', KEYS[#KEYS])
local count_limit, byte_limit = tonumber(ARGV[5]), tonumber(ARGV[6])
local bookmarks, texts, first_text = {}, {}, 8 + 2 * ARGV[7]
for i = 8, first_text - 2, 2 do
  -- Of equal ones, the leftmost: so a place is never too far to the left, and nothing is skipped.
  bookmarks[ARGV[i]] = bookmarks[ARGV[i]] or tonumber(ARGV[i + 1])
end
for i = first_text, #ARGV do
  texts[#texts + 1] = ARGV[i]
end

local is_first = ARGV[1] == ''
local shift, found_place = 0, nil
if not is_first then
  local looked_until = length
  read_list(list, tonumber(ARGV[4]), length - 1, 1, count_limit, byte_limit, function(entry, place)
    looked_until = place + 1
    found_place = bookmarks[mark_of(entry)]
    shift = found_place and place - found_place
    return found_place
  end)
  if not found_place then
    return looked_until < length and { 'look', looked_until } or { 'lost' }
  end
end

local place = length - 1 - (is_first and ARGV[4] or 0)
local stop = is_first and 0 or math.max(0, ARGV[2] + shift)
local is_sure = is_first
if not is_first then
  local expected = ARGV[1] + shift
  place = math.min(place, expected)
  local before = place == expected and redis.call('LINDEX', list, place + 1)
  is_sure = before and mark_of(before) == ARGV[3]
end

local taken_before = length - 1
for i = 1, #KEYS - 1 do
  taken_before = taken_before + redis.call('LLEN', KEYS[i])
end
local entries, last_mark = {}, ARGV[3]
if place >= stop then
  local last
  read_list(list, place, stop, -1, count_limit, byte_limit, function(entry, at)
    place, last = at - 1, entry
    if contains_any(entry, texts) then
      entries[#entries + 1] = taken_before - at
      entries[#entries + 1] = entry
    end
  end)
  last_mark = mark_of(last)
end

local new_bookmarks, new_stop = {}, stop - shift
if is_first or shift >= 64 or found_place > 0 then
  new_bookmarks = make_bookmarks(list, byte_limit)
  -- Up to the left end as it is now. What was the left end before cannot be counted from the new bookmarks:
  -- when an entry between them is removed, its place would be too far to the right, and it would be skipped.
  shift, new_stop = 0, 0
end
return {
  'page',
  place >= new_stop + shift and place - shift or '',
  new_stop,
  last_mark,
  is_sure and 1 or 0,
  new_bookmarks,
  entries,
}
