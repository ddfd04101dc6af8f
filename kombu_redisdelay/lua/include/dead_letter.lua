-- Adds a dead letter to its archive.

-- include: archive_keep
-- include: brief
-- include: expect
-- include: members

-- The archive with this index. To be called before a message leaves its place for it (expect.lua).
local function archive_of_dead(index)
  local archive = open_archive(index)
  expect_right('ZADD', index, '0', '')
  expect_right('HSET', archive.keys.messages, '', '')
  return archive
end

-- Adds a dead letter, as the publisher wrote it: `over` has also `kind`, that of the reason, and no group.
-- Returns how many older ones were dropped for it, so that no more than `limit` are kept.
local function add_dead_letter(archive, over, limit)
  over.group = task_in(over.stored) .. ' ' .. over.kind
  over.stored = with_members(over.stored, 1, { deliveries = false, lost = false, unknown = false })
  local outcome, why = keep(archive, over)
  if outcome == REFUSED then
    error(why.err)
  end
  return keep_within(archive, limits_of(limit), 0)
end
