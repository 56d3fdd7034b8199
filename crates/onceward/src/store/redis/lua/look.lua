-- A record as it is, with what is kept beside it if that is asked for.
-- KEYS: record. ARGV: now, member, 'record', 'beside' or 'steps' (only their names).
local now = text(time(ARGV[1]))
local beside = tag .. 'b:' .. ARGV[2]
local found = redis.call('HGETALL', KEYS[1])
if ARGV[3] == 'beside' then return {now, found, redis.call('HGETALL', beside)} end
if ARGV[3] == 'steps' then return {now, found, redis.call('HKEYS', beside)} end
return {now, found}
