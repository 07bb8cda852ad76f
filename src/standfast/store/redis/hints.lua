-- The list of sessions of a cluster. It is in one slot and the sessions are in others, so it is only a hint: a name is
-- added before its session is created, and removed long after the session was deleted.

local list, verb = KEYS[1], ARGV[1]
if redis.replicate_commands then redis.replicate_commands() end

if verb == 'add' then
  redis.call('ZADD', list, redis.call('TIME')[1], ARGV[2])
elseif verb == 'drop' then
  -- Not if it was added again since it was read.
  for index = 2, #ARGV, 2 do
    if redis.call('ZSCORE', list, ARGV[index]) == ARGV[index + 1] then redis.call('ZREM', list, ARGV[index]) end
  end
else
  return {redis.call('TIME')[1], redis.call('ZRANGE', list, 0, -1, 'WITHSCORES')}
end
