-- Makes a record if there is none, else returns it. Times come as distances from now.
-- KEYS: record, writers. ARGV: writer, acked, now, member, stamp, index of the state, index of what is
-- due (or ''), the distance at which it is, request (or ''), number of plain fields, their names and
-- values, then names and distances.
local now = time(ARGV[3])
local found = redis.call('HGETALL', KEYS[1])
if #found > 0 then return {'found', text(now), found} end
local counted = count(ARGV[1], ARGV[2])
if not counted then return {'lost'} end
local member = ARGV[4]
local fields = {'v', ARGV[5]}
local last = 10 + tonumber(ARGV[10]) * 2
for i = 11, last do fields[#fields + 1] = ARGV[i] end
for i = last + 1, #ARGV, 2 do
    fields[#fields + 1] = ARGV[i]
    fields[#fields + 1] = text(now + tonumber(ARGV[i + 1]))
end
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('DEL', tag .. 'b:' .. member)
if ARGV[9] ~= '' then redis.call('HSET', tag .. 'b:' .. member, 'q', ARGV[9]) end
redis.call('ZADD', tag .. 'c', text(now), member)
redis.call('ZADD', tag .. ARGV[6], text(now), member)
if ARGV[7] ~= '' then redis.call('ZADD', tag .. ARGV[7], text(now + tonumber(ARGV[8])), member) end
return {'created', text(now), counted}
