-- Read or change a session of openai-agents in its own keys: a hash with the times, a list with a JSON text per item, and a
-- counter that it only deletes.
--
-- KEYS: the three keys of the session; where standfast may have adopted it, also the record of standfast, the mark of an
-- adopted prefix, and the list of sessions of standfast.

if redis.replicate_commands then redis.replicate_commands() end

local CHUNK = 1000 -- the maximum number of values per call
local facts_key, list_key, counter_key = KEYS[1], KEYS[2], KEYS[3]
local command, lock, ttl = ARGV[1], ARGV[2], ARGV[3]
local at = 3

local function take()
  at = at + 1
  return ARGV[at]
end

local function type_of(key)
  return redis.call('TYPE', key).ok
end

-- Whose session it is --------------------------------------------------------------------------------------------

local list_type, facts_type = type_of(list_key), type_of(facts_key)
if list_type == 'string' and redis.call('GET', list_key) == lock then return {'adopted'} end
if list_type ~= 'none' and list_type ~= 'list' then return {'damaged', list_key, list_type} end
if facts_type ~= 'none' and facts_type ~= 'hash' then return {'damaged', facts_key, facts_type} end
if #KEYS > 3 then
  if type_of(KEYS[4]) == 'hash' then return {'adopted'} end
  if list_type == 'none' and facts_type == 'none' then
    local marked = type_of(KEYS[5]) == 'string'
    if marked and command == 'commit' then
      -- openai-agents must not begin a second history of the session that is created now.
      redis.call('SET', list_key, lock)
      if ttl ~= '' then redis.call('PEXPIRE', list_key, ttl) end
    end
    if marked or type_of(KEYS[6]) == 'zset' then return {'adopted'} end
  end
end

-- Its state ------------------------------------------------------------------------------------------------------

local function read_record()
  local times = redis.call('HMGET', facts_key, 'created_at', 'updated_at')
  local length = redis.call('LLEN', list_key)
  if length == 0 and redis.call('EXISTS', facts_key) == 0 then return {'0', 0, '', ''} end
  local last = redis.call('LINDEX', list_key, -1) or ''
  local digest = redis.sha1hex(table.concat({times[1] or '', times[2] or '', length, last}, '\n'))
  local version = string.format('%.0f', tonumber(string.sub(digest, 1, 12), 16) + 1)
  return {version, length, times[1] or '', times[2] or ''}
end

if command == 'record' then return {'ok', read_record()} end

if command == 'read' then
  local record = read_record()
  local start, stop, last, most = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
  local length = record[2]
  local finish = stop and math.min(stop, length) or length
  if last then start, finish = math.max(length - last, 0), length end
  local rows = start < finish and redis.call('LRANGE', list_key, start, math.min(finish, start + most) - 1) or {}
  return {'ok', record, start, finish, rows}
end

-- Changes: all are checked before the first is made ----------------------------------------------------------------

local session_id = take()
local changes, record, settled = {}, read_record(), true
while at < #ARGV do
  local change = {kind = take(), expected = take(), kept = take(), first = at + 2}
  change.count = tonumber(take())
  at = at + change.count
  if change.expected ~= '' and not (settled and change.expected == record[1]) then
    return {'moved', record}
  end
  if change.kind ~= 'require' then settled = false end
  changes[#changes + 1] = change
end

local time = redis.call('TIME')
local deadline = ttl ~= '' and string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ttl)
for _, change in ipairs(changes) do
  if change.kind == 'erase' then
    redis.call('DEL', facts_key, list_key, counter_key)
  elseif change.kind == 'splice' then
    if change.kept == '0' then
      redis.call('DEL', list_key)
    elseif change.kept ~= '' then
      redis.call('LTRIM', list_key, 0, tonumber(change.kept) - 1)
    end
    for first = change.first, change.first + change.count - 1, CHUNK do
      local last = math.min(first + CHUNK, change.first + change.count) - 1
      redis.call('RPUSH', list_key, unpack(ARGV, first, last))
    end
    redis.call('HSET', facts_key, 'session_id', session_id)
    redis.call('HSETNX', facts_key, 'created_at', time[1])
    redis.call('HSET', facts_key, 'updated_at', time[1])
    if deadline then
      for _, key in ipairs({facts_key, list_key, counter_key}) do redis.call('PEXPIREAT', key, deadline) end
    end
  end
end
return {'ok', read_record()}
