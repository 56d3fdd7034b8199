-- Changes a record if it is what was looked at, with all that changes in the same step.
-- KEYS: record, writers. ARGV: writer, acked, evicted, now, member, stamp expected ('' for none), stamp,
-- what ('put', 'remove' or 'keep'), flags (b: what is beside it goes; n: what was noted of it goes), request,
-- name and result of a step, provider id, number of audit records (digest, time, generation, encoded),
-- number of indexes (name, place), names and values of the fields.
local function now_and_found()
    return text(time(ARGV[4])), redis.call('HGETALL', KEYS[1])
end
local member, what, flags = ARGV[5], ARGV[8], ARGV[9]
local stamp = redis.call('HGET', KEYS[1], 'v') or ''
local is_done = what ~= 'keep' and stamp == ARGV[7]
if stamp ~= ARGV[6] and not is_done then return {'conflict', now_and_found()} end
if has_evicted(ARGV[3]) then return {'evicted', evicted()} end
-- Counted also if it is done: the first time may have been over another connection.
local counted = count(ARGV[1], ARGV[2])
if not counted then return {'lost'} end
if is_done then return {'applied', counted, {}} end
local beside, notes = tag .. 'b:' .. member, tag .. 'i:' .. member
local forgotten = {}
if string.find(flags, 'n', 1, true) then
    forgotten = redis.call('HKEYS', notes)
    redis.call('DEL', notes)
end
local at = 15
for _ = 1, tonumber(ARGV[14]) do
    remember(member, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
    at = at + 4
end
if what ~= 'keep' then
    redis.call('DEL', KEYS[1])
    for index in string.gmatch('cPIUCFEwhHdu', '.') do redis.call('ZREM', tag .. index, member) end
    if string.find(flags, 'b', 1, true) then redis.call('DEL', beside) end
end
if what == 'put' then
    local fields = at + 1 + tonumber(ARGV[at]) * 2
    for i = at + 1, fields - 1, 2 do redis.call('ZADD', tag .. ARGV[i], ARGV[i + 1], member) end
    redis.call('HSET', KEYS[1], 'v', ARGV[7], unpack(ARGV, fields))
end
if ARGV[10] ~= '' then redis.call('HSETNX', beside, 'q', ARGV[10]) end
if ARGV[11] ~= '' then
    local place = string.format('%08d', redis.call('HLEN', beside))
    redis.call('HSETNX', beside, 's' .. ARGV[11], place .. ARGV[12])
end
if ARGV[13] ~= '' then
    redis.call('HSETNX', notes, ARGV[13], redis.call('INCR', tag .. 'n'))
end
return {'applied', counted, forgotten}
