-- A brief tells a log which message this is: the beginning of its headers, as kombu writes them. Celery puts
-- the task and the id there. It is found without a pattern, which would take milliseconds for a large
-- message; no text of the body can look like it, because there the quotes are escaped.
local MOST_BRIEFS, BRIEF_BYTES = 5, 400

-- Adds the one of `stored` to `briefs`, which are bounded.
local function add_brief(briefs, stored)
  if #briefs < MOST_BRIEFS then
    local at = string.find(stored, '"headers": {', 1, true)
    briefs[#briefs + 1] = at and string.sub(stored, at, at + BRIEF_BYTES - 1) or ''
  end
end
