-- Whether the entry contains one of the `texts`, or there are none.
local function contains_any(entry, texts)
  for _, text in ipairs(texts) do
    if string.find(entry, text, 1, true) then
      return true
    end
  end
  return #texts == 0
end
