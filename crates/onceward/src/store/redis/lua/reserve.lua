-- Makes a record if there is none, else returns it. Times come as distances from now.
-- KEYS: record, writers. ARGV: writer, acked, evicted, now, member, stamp, index of the state, index of
-- what is due (or ''), the distance at which it is, request (or ''), number of plain fields, their names
-- and values, then names and distances.
local now = time(ARGV[4])
local found = redis.call('HGETALL', KEYS[1])
if #found > 0 then return {'found', text(now), found} end
if has_evicted(ARGV[3]) then return {'evicted', evicted()} end
local counted = count(ARGV[1], ARGV[2])
if not counted then return {'lost'} end
local member = ARGV[5]
local fields = {'v', ARGV[6]}
local last = 11 + tonumber(ARGV[11]) * 2
for i = 12, last do fields[#fields + 1] = ARGV[i] end
for i = last + 1, #ARGV, 2 do
    fields[#fields + 1] = ARGV[i]
    fields[#fields + 1] = text(now + tonumber(ARGV[i + 1]))
end
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('DEL', tag .. 'b:' .. member)
if ARGV[10] ~= '' then redis.call('HSET', tag .. 'b:' .. member, 'q', ARGV[10]) end
redis.call('ZADD', tag .. 'c', text(now), member)
redis.call('ZADD', tag .. ARGV[7], text(now), member)
if ARGV[8] ~= '' then redis.call('ZADD', tag .. ARGV[8], text(now + tonumber(ARGV[9])), member) end
return {'created', text(now), counted}
