-- Read the record of a session and a range of its view, atomically.
--
-- For items in other slots of a cluster, the reply contains their places instead of the items.

local CHUNK = 1000

local prefix, tag, spread, generation = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
local start, stop, last = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local base = prefix .. ':{' .. tag .. '}'
local record = redis.call('HGETALL', base)
if #record == 0 then return false end

local field = {}
for index = 1, #record, 2 do
  field[record[index]] = record[index + 1]
end
if not (field.closed and field.tape and field.open_from and field.next_seq) then
  return {record, '0', {}, 0} -- damaged, which the caller reports
end
local shown = field.closed .. '[' .. field.tape .. ',' .. field.open_from .. ',' .. field.next_seq .. ']'
if generation ~= '' then
  local entry = redis.call('HGET', base .. ':generations', generation)
  if not entry then return {'no generation'} end
  shown = entry
end

-- Tape numbers are too long for Lua's, so they stay strings.
local spans, size = {}, 0
for tape, from, to in shown:gmatch('%[?%[(%d+),(%d+),(%d+)%]') do
  local span = {tape = tape, from = tonumber(from), length = tonumber(to) - tonumber(from)}
  if span.length > 0 then
    spans[#spans + 1] = span
    size = size + span.length
  end
end

if last then
  start, stop = math.max(size - last, 0), size
end
stop = stop or size

local origin = {[field.tape] = tag}
for tape, where in (field.origins or ''):gmatch('(%d+)=%d+=(%S+)') do
  origin[tape] = where
end

local function items(key, from, to)
  local found = {}
  for first = from, to - 1, CHUNK do
    local places = {}
    for seq = first, math.min(first + CHUNK, to) - 1 do
      places[#places + 1] = string.format('%.0f', seq)
    end
    for index, data in ipairs(redis.call('HMGET', key, unpack(places))) do
      found[first - from + index] = data
    end
  end
  return found
end

local pieces, position = {}, 0
for _, span in ipairs(spans) do
  local low, high = math.max(start - position, 0), math.min(stop - position, span.length)
  if low < high then
    local from, to = span.from + low, span.from + high
    local where = origin[span.tape] or ''
    local here = where ~= '' and (not spread or where == tag)
    pieces[#pieces + 1] = {
      span.tape, string.format('%.0f', from), string.format('%.0f', to), where,
      here and items(prefix .. ':{' .. where .. '}:tape:' .. span.tape, from, to) or false,
    }
  end
  position = position + span.length
end
local overrun = field.seal and redis.call('HEXISTS', base .. ':tape:' .. field.tape, field.next_seq) or 0
return {record, string.format('%.0f', start), pieces, overrun}
