-- The key of a message in a fair queue (fair.lua), such as a tenant of an application, and its weight: who
-- has twice the weight has twice the turns. A publisher of ours writes both as a member (members.lua), the
-- others as headers. A header is only read, so this is the one place where JSON is decoded.
--
-- What is not right is no key, or no weight: it must never stop a worker. A message without a key has the
-- key "".

-- include: members

local LONGEST_KEY, LEAST_WEIGHT, GREATEST_WEIGHT = 64, 0.001, 1000
local KEY = '^"redisdelay%-key": ?"([%d.]+) ([^"]*)", ?'
-- The same from the beginning of a message: most are found by one look.
local FIRST_KEY = '^{"redisdelay%-due": ?%d+, ?' .. string.sub(KEY, 2)
-- Headers are looked for in the end of a message, behind its body. A longer end is not decoded.
local LONGEST_END = 65536

local function decoded(json)
  local is_json, value = pcall(cjson.decode, json)
  return is_json and type(value) == 'table' and value or {}
end

-- What is not UTF-8: bytes that are never there, longer forms than needed, surrogates, and what is too great.
local NEVER =
  { '[\192\193\245-\255]', '\224[\128-\159]', '\237[\160-\191]', '\240[\128-\143]', '\244[\144-\191]' }
local CHARACTERS = {
  '[\240-\244][\128-\191][\128-\191][\128-\191]',
  '[\224-\239][\128-\191][\128-\191]',
  '[\194-\223][\128-\191]',
}

local function is_utf8(text)
  for _, pattern in ipairs(NEVER) do
    if string.find(text, pattern) then
      return false
    end
  end
  for _, pattern in ipairs(CHARACTERS) do
    text = string.gsub(text, pattern, '.')
  end
  return not string.find(text, '[\128-\255]')
end

-- The text, if it may be a key.
local function usable_key(text)
  if type(text) ~= 'string' or #text > LONGEST_KEY or string.find(text, '[%c"\\]') then
    return nil
  end
  -- Control characters of the other kind, U+0080 to U+009F.
  if string.find(text, '\194[\128-\159]') then
    return nil
  end
  return (not string.find(text, '[\128-\255]') or is_utf8(text)) and text or nil
end

local function usable_weight(number)
  local is_weight = type(number) == 'number' and number >= LEAST_WEIGHT and number <= GREATEST_WEIGHT
  return is_weight and number or 1
end

-- Weight and key as the member has them; nil if there is no such member.
local function key_member(stored, start)
  local weight, key = string.match(stored, FIRST_KEY, start)
  if not weight then
    local _, brace, rest = members_of(stored, start)
    if brace then
      weight, key = string.match(stored, KEY, rest)
    end
  end
  return weight, key
end

-- Weight and key as the headers have them; nil if they have none.
local function key_in_headers(stored, start)
  local at = string.find(stored, '"headers": {', start, true)
  if not at or #stored - at > LONGEST_END or not string.find(stored, '"x-key"', at, true) then
    return nil
  end
  local headers = decoded('{' .. string.sub(stored, at)).headers
  if type(headers) == 'table' and headers['x-key'] ~= nil then
    return headers['x-key-weight'], headers['x-key']
  end
end

-- Key and weight of a message; true if it has to be read from its headers, which takes four times as long.
local function fair_key_of(stored, start)
  local weight, text = key_member(stored, start)
  if weight then
    if string.find(text, '\\', 1, true) then
      -- A client may escape what is not ASCII.
      text = decoded('["' .. text .. '"]')[1]
    end
    return usable_key(text) or '', usable_weight(tonumber(weight)), false
  end
  weight, text = key_in_headers(stored, start)
  return usable_key(text) or '', usable_weight(weight), text ~= nil
end

-- The key of a payload, and the payload with the member if it had to be read from the headers; then the third
-- value is true.
local function key_and_payload(payload)
  local key, weight, is_decoded = fair_key_of(payload, 1)
  if not is_decoded or key == '' then
    return key, payload, is_decoded
  end
  local _, _, rest = members_of(payload, 1)
  local member = string.format('"redisdelay-key": "%.10g %s", ', weight, key)
  return key, string.sub(payload, 1, rest - 1) .. member .. string.sub(payload, rest), true
end
