-- List sessions with their records and scores, newest first, on a single server.
--
-- There the list is exact: every commit sets the score of a session to the time in its record. Only expiry does not
-- update it, so a name without a record is removed here.

local prefix, count, before, after = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local list = prefix .. ':sessions'

local function key_of(id)
  local tag = id:gsub('[^A-Za-z0-9_.~:/@-]', function(char) return string.format('%%%02X', char:byte()) end)
  return prefix .. ':{' .. tag .. '}'
end

-- Lua compares strings by the server's locale; sorted sets, and Python, by their bytes.
local function at_or_above(one, other)
  for index = 1, math.min(#one, #other) do
    local a, b = one:byte(index), other:byte(index)
    if a ~= b then return a > b end
  end
  return #one >= #other
end

local rank = before == '' and 0 or redis.call('ZCOUNT', list, '(' .. before, '+inf')
local found = {}
while #found < count do
  local names = redis.call('ZREVRANGE', list, rank, rank + count - 1, 'WITHSCORES')
  if #names == 0 then break end
  for index = 1, #names, 2 do
    if #found == count then break end
    local id, score = names[index], names[index + 1]
    local passed = before ~= '' and tonumber(score) == tonumber(before) and at_or_above(id, after)
    local record = passed and {} or redis.call('HGETALL', key_of(id))
    if not passed and #record == 0 then
      redis.call('ZREM', list, id)
    else
      rank = rank + 1
      if not passed then found[#found + 1] = {id, record, score} end
    end
  end
end
return found
