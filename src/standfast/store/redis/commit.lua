-- One commit.
--
-- A script that fails in the middle is not rolled back, so this one has two passes: the first checks every operation in
-- order, on a copy of the records, and may refuse; the second makes the writes that the first has queued, and cannot fail.
--
-- Tape numbers have 62 bits and Lua's numbers 53: tapes stay strings throughout.

-- Redis before 7 replicates scripts unless this is called; the writes must be replicated, since the script reads the clock.
if redis.replicate_commands then redis.replicate_commands() end

local CHUNK = 1000 -- the maximum number of values per call
local FIELDS = {
  'tape', 'version', 'length', 'next_seq', 'open_from', 'erased_upto', 'generation', 'closed', 'origins',
  'updated_at', 'seal',
}

local prefix, clock, ttl, spread, hinted = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5] == '1'
local at = 5

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local now = clock ~= '' and tonumber(clock) or time[1] + time[2] / 1000000
local deadline = ttl ~= '' and string.format('%.0f', now_ms + ttl)

local function take()
  at = at + 1
  return ARGV[at]
end

local function optional()
  return take() == '1' and take() or nil
end

local function whole(number)
  return string.format('%.0f', number)
end

local function exact(number)
  return string.format('%.17g', number)
end

local function key_of(tag)
  return prefix .. ':{' .. tag .. '}'
end

local effects = {}
local function later(effect)
  effects[#effects + 1] = effect
end

-- Sessions as this batch sees them -------------------------------------------------------------------------------

local sessions, touched = {}, {}
local born = false
local list = prefix .. ':sessions'
if not spread then redis.call('ZCARD', list) end

local function session(tag)
  if sessions[tag] then return sessions[tag] end
  local base = key_of(tag)
  local stored = redis.call('HMGET', base, unpack(FIELDS))
  local s = {tag = tag, base = base, exists = (stored[1] or stored[2]) and true or false, keys = {}}
  s.tape = stored[1] or nil
  s.version, s.length, s.next_seq, s.open_from, s.erased_upto, s.generation = 0, 0, 0, 0, 0, 0
  s.closed, s.origins, s.sealed = '[]', '', false
  s.updated_at = now
  if s.exists then
    for index = 2, 7 do
      s.damaged = s.damaged or not tonumber(stored[index])
      s[FIELDS[index]] = tonumber(stored[index]) or 0
    end
    s.damaged = s.damaged or not (stored[1] and stored[8] and tonumber(stored[10]))
    s.tape, s.closed, s.origins = stored[1] or '', stored[8] or '[]', stored[9] or ''
    s.sealed, s.updated_at = stored[11] and true or false, tonumber(stored[10]) or now
  end
  sessions[tag] = s
  return s
end

local function head(s)
  return {whole(s.version), whole(s.length)}
end

local function moved(s, expected)
  return expected and expected ~= whole(s.version) and {'moved', whole(s.version), whole(s.length)}
end

-- Refuse a key with a value of another type here, while nothing is written yet.
local function hash(key)
  redis.call('HLEN', key)
  return key
end

-- Queue the change of these fields of the record, and of its time.
local function put(s, id, fields)
  s.updated_at = math.max(s.updated_at, now)
  fields[#fields + 1], fields[#fields + 2] = 'updated_at', exact(s.updated_at)
  local base, updated_at = s.base, exact(s.updated_at)
  later(function()
    redis.call('HSET', base, unpack(fields))
    if not spread then redis.call('ZADD', list, updated_at, id) end
  end)
  touched[s.tag] = s
end

local function create(s, id, tape, owner)
  s.exists, born = true, true
  s.tape, s.updated_at = tape, now
  local fields = {
    'tape', tape, 'version', '0', 'length', '0', 'next_seq', '0', 'open_from', '0', 'erased_upto', '0',
    'generation', '0', 'closed', '[]', 'origins', '', 'created_at', exact(now),
  }
  if owner then
    s.owner = owner
    fields[#fields + 1], fields[#fields + 2] = 'owner', owner
  end
  put(s, id, fields)
end

-- A sealed history only accepts changes that carry the next seal, and a seal is computed for one tape.
local function unsealed(s, seal, tape)
  if not s.exists then return nil end
  if not seal then return s.sealed and {'sealed'} end
  return tape and tape ~= s.tape and {'moved', whole(s.version), whole(s.length)}
end

local function reseal(s, seal, fields)
  if seal then
    fields[#fields + 1], fields[#fields + 2] = 'seal', seal
    s.sealed = true
  end
end

-- Tapes and the forks that share them ----------------------------------------------------------------------------

-- The link of a fork to a tape: the ranges it started with, and when it expires, if the fork expires.
local function hold(origin, tape, link, stretches)
  local held = stretches .. (deadline and ' ' .. deadline or '')
  redis.call('HSET', key_of(origin) .. ':links:' .. tape, link, held)
end

-- Extend the expiry of a shared tape to that of the fork that was just written.
local function prolong(origin, tape, link)
  local links = key_of(origin) .. ':links:' .. tape
  local held = redis.call('HGET', links, link)
  if held then hold(origin, tape, link, held:match('^%S+')) end
  local items = key_of(origin) .. ':tape:' .. tape
  if not deadline then
    redis.call('PERSIST', items)
    redis.call('PERSIST', links)
    return
  end
  local left = redis.call('PTTL', items)
  if left ~= -1 then
    local ends = left < tonumber(ttl) and deadline or whole(now_ms + left)
    redis.call('PEXPIREAT', items, ends)
    redis.call('PEXPIREAT', links, ends)
  end
end

-- The ranges of a tape that existing forks started with.
local function held_places(links)
  local stretches, places, upto = {}, {}, 0
  for _, held in ipairs(redis.call('HVALS', links)) do
    local shown, expires = held:match('^(%S+) ?(%d*)$')
    -- Earlier versions stored a single number: everything before it may be in the view.
    if shown:match('^%d+$') then shown = '0-' .. shown end
    if expires == '' or tonumber(expires) > now_ms then
      for start, stop in shown:gmatch('(%d+)%-(%d+)') do
        stretches[#stretches + 1] = {tonumber(start), tonumber(stop)}
      end
    end
  end
  table.sort(stretches, function(one, other) return one[1] < other[1] end)
  for _, stretch in ipairs(stretches) do
    for place = math.max(stretch[1], upto), stretch[2] - 1 do places[place] = true end
    upto = math.max(upto, stretch[2])
  end
  return places
end

-- Delete the items that the session of a tape erased, or all if it was forgotten, except those of forks.
local function sweep(base, tape)
  local key, shared = base .. ':tape:' .. tape, held_places(base .. ':links:' .. tape)
  local writer = redis.call('HMGET', base, 'tape', 'erased_upto')
  local erased = writer[1] == tape and tonumber(writer[2]) or math.huge
  if not next(shared) and erased == math.huge then
    redis.call('DEL', key)
    return
  end
  local gone = {}
  for _, seq in ipairs(redis.call('HKEYS', key)) do
    local place = tonumber(seq)
    if place and not shared[place] and place < erased then gone[#gone + 1] = seq end
  end
  for first = 1, #gone, CHUNK do
    redis.call('HDEL', key, unpack(gone, first, math.min(first + CHUNK - 1, #gone)))
  end
end

local function release(origin, tape, link)
  redis.call('HDEL', key_of(origin) .. ':links:' .. tape, link)
  sweep(key_of(origin), tape)
end

local function write_items(key, seq, first, last)
  for from = first, last, CHUNK do
    local pairs_ = {}
    for index = from, math.min(from + CHUNK - 1, last) do
      pairs_[#pairs_ + 1] = whole(seq + index - first)
      pairs_[#pairs_ + 1] = ARGV[index]
    end
    redis.call('HSET', key, unpack(pairs_))
  end
end

-- Operations. Each returns its result, or nil and the reason of a refusal. ----------------------------------------

local ops = {}
local leftovers = {} -- record keys whose fork links have yet to be removed in other slots

function ops.splice()
  local s = session(take())
  if s.damaged then return nil, {'damaged'} end
  local id, expected, key, digest = take(), optional(), optional(), optional()
  local seal, owner, tape, closed = optional(), optional(), take(), optional()
  local open_from, length, archive
  if closed then
    open_from, length, archive = tonumber(take()), tonumber(take()), take() == '1'
  end
  local links = {}
  for index = 1, tonumber(take()) do
    links[index] = {tape = take(), held = take(), origin = take()}
  end
  local count = tonumber(take())
  local first = at + 1
  at = at + count

  if key then
    local done = s.keys[key]
    if done == nil and not s.unkeyed then done = redis.call('HGET', s.base .. ':keys', key) end
    if done then
      local version, items, used = done:match('^(%d+) (%d+) (.*)$')
      if used ~= digest then return nil, {'key'} end
      return {version, items}
    end
  end
  local refusal = moved(s, expected) or unsealed(s, seal, tape)
  if refusal then return nil, refusal end
  for _, link in ipairs(links) do
    if link.origin == '' then return nil, {'tape', link.tape} end
  end

  if archive and s.exists then
    local shown = s.closed:sub(1, -2) .. (s.closed == '[]' and '' or ',')
      .. '[' .. s.tape .. ',' .. whole(s.open_from) .. ',' .. whole(s.next_seq) .. ']]'
    local entry = table.concat({whole(s.length), whole(s.next_seq + count), exact(now), shown}, ' ')
    local generations, number = hash(s.base .. ':generations'), whole(s.generation)
    later(function() redis.call('HSET', generations, number, entry) end)
    s.generation = s.generation + 1
  end
  if not s.exists then create(s, id, tape, owner) end
  if count > 0 then
    local items, seq = hash(s.base .. ':tape:' .. s.tape), s.next_seq
    later(function() write_items(items, seq, first, first + count - 1) end)
  end

  s.version, s.next_seq = s.version + 1, s.next_seq + count
  s.length = closed and length or s.length + count
  local fields = {'version', whole(s.version), 'length', whole(s.length), 'next_seq', whole(s.next_seq)}
  if closed then
    s.closed, s.open_from = closed, open_from
    for _, value in ipairs({'closed', closed, 'open_from', whole(open_from), 'generation', whole(s.generation)}) do
      fields[#fields + 1] = value
    end
  end
  for _, link in ipairs(links) do
    s.origins = s.origins .. link.tape .. '=' .. tape .. '=' .. link.origin .. ' '
    -- In another slot of a cluster it was linked before this script was sent.
    if not spread or link.origin == s.tag then
      hash(key_of(link.origin) .. ':links:' .. link.tape)
      later(function() hold(link.origin, link.tape, tape, link.held) end)
    end
  end
  if #links > 0 then
    fields[#fields + 1], fields[#fields + 2] = 'origins', s.origins
  end
  reseal(s, seal, fields)
  put(s, id, fields)
  if key then
    local keys, entry = hash(s.base .. ':keys'), whole(s.version) .. ' ' .. whole(s.length) .. ' ' .. digest
    s.keys[key] = entry
    later(function() redis.call('HSET', keys, key, entry) end)
  end
  return head(s)
end

function ops.erase()
  local s = session(take())
  local id, expected, seal, forget = take(), optional(), optional(), take() == '1'
  -- Without its tape, the items could not be found.
  if s.damaged and (s.tape == '' or not forget) then return nil, {'damaged'} end
  local refusal = moved(s, expected) or not forget and unsealed(s, seal)
  if refusal then return nil, refusal end
  leftovers[s.base] = true
  if not s.exists then return head(s) end

  local base, tag, tape, origins = s.base, s.tag, s.tape, s.origins
  local left = redis.call('TYPE', base .. ':unlinking').ok
  if left ~= 'none' and left ~= 'set' then error('WRONGTYPE ' .. base .. ':unlinking') end
  hash(base .. ':links:' .. tape)
  hash(base .. ':tape:' .. tape)
  for shared, origin in origins:gmatch('(%d+)=%d+=(%S+)') do
    if not spread or origin == tag then
      hash(key_of(origin) .. ':links:' .. shared)
      hash(key_of(origin) .. ':tape:' .. shared)
    end
  end
  s.origins, s.keys, s.unkeyed = '', {}, true
  if forget then
    s.exists, s.forgotten, s.sealed, s.damaged = false, true, false, false
    s.tape, s.version, s.length, s.next_seq, s.open_from, s.erased_upto, s.generation = nil, 0, 0, 0, 0, 0, 0
    s.closed = '[]'
    later(function()
      redis.call('DEL', base)
      if not spread then redis.call('ZREM', list, id) end
    end)
  else
    s.version, s.length, s.closed, s.open_from, s.erased_upto = s.version + 1, 0, '[]', s.next_seq, s.next_seq
    local fields = {
      'version', whole(s.version), 'length', '0', 'closed', '[]', 'open_from', whole(s.next_seq),
      'erased_upto', whole(s.next_seq), 'origins', '',
    }
    reseal(s, seal, fields)
    put(s, id, fields)
  end
  later(function()
    redis.call('DEL', base .. ':generations', base .. ':quarantine', base .. ':keys')
    sweep(base, tape)
    for shared, link, origin in origins:gmatch('(%d+)=(%d+)=(%S+)') do
      if spread and origin ~= tag then
        -- Stored until it is done, so that it can be continued after a crash.
        redis.call('SADD', base .. ':unlinking', shared .. '=' .. link .. '=' .. origin)
      else
        release(origin, shared, link)
      end
    end
  end)
  return head(s)
end

function ops.annotate()
  local s = session(take())
  if s.damaged then return nil, {'damaged'} end
  local id, tape, owner, claim = take(), take(), optional(), take() == '1'
  local fields, gone = {}, {}
  for _ = 1, tonumber(take()) do
    local field, value = '#' .. take(), optional()
    if value then
      fields[#fields + 1], fields[#fields + 2] = field, value
    else
      gone[#gone + 1] = field
    end
  end
  if claim and owner and s.exists then
    local found = s.owner or redis.call('HGET', s.base, 'owner')
    if found and found ~= owner then return nil, {'owner'} end
  end
  if not s.exists then create(s, id, tape) end
  if owner then
    s.owner = owner
    fields[#fields + 1], fields[#fields + 2] = 'owner', owner
  end
  put(s, id, fields)
  local base = s.base
  if #gone > 0 then
    later(function() redis.call('HDEL', base, unpack(gone)) end)
  end
  return head(s)
end

function ops.require()
  local s = session(take())
  if s.damaged then return nil, {'damaged'} end
  local refusal = moved(s, take())
  if refusal then return nil, refusal end
  return false
end

function ops.quarantine()
  local s = session(take())
  if s.damaged then return nil, {'damaged'} end
  local place, reason = take(), take()
  local key = hash(s.base .. ':quarantine')
  later(function() redis.call('HSETNX', key, place, exact(now) .. ' ' .. reason) end)
  touched[s.tag] = s
  return false
end

-- Leases. They are kept after they expire, so that the token of the next owner is higher. -------------------------

local leases = {}

local function lease(tag)
  if leases[tag] then return leases[tag] end
  local key = key_of(tag) .. ':lease'
  local stored = redis.call('HMGET', key, 'owner', 'token', 'expires_at')
  leases[tag] = {
    key = key, owner = stored[1] or '', token = stored[2] or '0', expires_at = tonumber(stored[3] or 0),
  }
  return leases[tag]
end

local function keep(l)
  local key, owner, token, expires_at = l.key, l.owner, l.token, exact(l.expires_at)
  later(function() redis.call('HSET', key, 'owner', owner, 'token', token, 'expires_at', expires_at) end)
  return {owner, token, expires_at}
end

local function lost(l, token)
  return (l.token ~= token or l.owner == '') and {'fence', l.token}
end

function ops.take()
  local l = lease(take())
  local owner, seconds = take(), tonumber(take())
  local held = l.expires_at > now
  if held and l.owner ~= owner then return nil, {'held', l.owner, exact(l.expires_at)} end
  if not held then l.token = whole(tonumber(l.token) + 1) end
  l.owner, l.expires_at = owner, now + seconds
  return keep(l)
end

function ops.renew()
  local l = lease(take())
  local token, seconds = take(), tonumber(take())
  local refusal = lost(l, token)
  if refusal then return nil, refusal end
  l.expires_at = now + seconds
  return keep(l)
end

function ops.drop()
  local l = lease(take())
  if l.token == take() and l.token ~= '0' then
    l.owner, l.expires_at = '', 0
    keep(l)
  end
  return false
end

function ops.fence()
  local l = lease(take())
  local refusal = lost(l, take())
  if refusal then return nil, refusal end
  return false
end

-- Changes of links for forks in other slots of a cluster. --------------------------------------------------------

function ops.link()
  local origin, tape, link, held = take(), take(), take(), take()
  hash(key_of(origin) .. ':links:' .. tape)
  later(function()
    hold(origin, tape, link, held)
    prolong(origin, tape, link)
  end)
  return false
end

function ops.unlink()
  local origin, tape, link = take(), take(), take()
  hash(key_of(origin) .. ':links:' .. tape)
  later(function() release(origin, tape, link) end)
  return false
end

function ops.prolong()
  local origin, tape, link = take(), take(), take()
  hash(key_of(origin) .. ':links:' .. tape)
  later(function() prolong(origin, tape, link) end)
  return false
end

-- First pass.
local outcomes = {}
while at < #ARGV do
  local outcome, refusal = ops[take()]()
  if refusal then
    return {'refused', whole(#outcomes), unpack(refusal)}
  end
  outcomes[#outcomes + 1] = outcome
end
-- In a cluster the list of sessions is in another slot, and a new session must be on it before it is created.
if spread and born and not hinted then return {'unlisted'} end

-- Second pass.
for _, effect in ipairs(effects) do
  effect()
end

-- All keys of a session expire at the same moment, or not at all.
local prolonging = {}
for tag, s in pairs(touched) do
  if deadline or redis.call('PTTL', s.base) >= 0 then
    local keys = {s.base, s.base .. ':keys', s.base .. ':generations', s.base .. ':quarantine'}
    if s.exists then
      keys[#keys + 1] = s.base .. ':tape:' .. s.tape
      keys[#keys + 1] = s.base .. ':links:' .. s.tape
    end
    for _, key in ipairs(keys) do
      if deadline then redis.call('PEXPIREAT', key, deadline) else redis.call('PERSIST', key) end
    end
    for tape, link, origin in s.origins:gmatch('(%d+)=(%d+)=(%S+)') do
      if spread and origin ~= tag then
        prolonging[#prolonging + 1] = tape .. '=' .. link .. '=' .. origin
      else
        prolong(origin, tape, link)
      end
    end
  end
end

local unlinking = {}
for base in pairs(leftovers) do
  for _, link in ipairs(redis.call('SMEMBERS', base .. ':unlinking')) do
    unlinking[#unlinking + 1] = link
  end
end
return {'done', outcomes, unlinking, prolonging}
