-- A brief tells a log which message this is: the beginning of its headers, as kombu writes them. Celery puts
-- the task and the id there. It is found without a pattern, which would take milliseconds for a large
-- message; no text of the body can look like it, because there the quotes are escaped.
local MOST_BRIEFS, BRIEF_BYTES = 5, 400

local function brief_of(stored)
  local at = string.find(stored, '"headers": {', 1, true)
  return at and string.sub(stored, at, at + BRIEF_BYTES - 1) or ''
end

-- Adds the one of `stored` to `briefs`, which are bounded.
local function add_brief(briefs, stored)
  if #briefs < MOST_BRIEFS then
    briefs[#briefs + 1] = brief_of(stored)
  end
end

-- The name of the task in a message that Celery has written; "-" in another one, or if the name is a rare one
-- (broker/failure.py has what is kept of names).
local LONGEST_TASK = 200

local function task_in(stored)
  local task = string.match(brief_of(stored), '^"headers": {"lang": "%w*", "task": "([%w%._%-]+)"')
  return task and #task <= LONGEST_TASK and task or '-'
end
