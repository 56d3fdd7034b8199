-- Counts a beat of a node, if nothing has changed since it looked.
-- KEYS: beats, writers. ARGV: now, node, beat expected, count, run, writer, the count that it was told,
-- loss expected, loss, how long beats are kept, then an audit record (member, digest, time, generation,
-- encoded).
local now = time(ARGV[1])
local last = redis.call('HGET', KEYS[1], ARGV[2]) or ''
if last ~= ARGV[3] or (redis.call('GET', tag .. 'g') or '') ~= ARGV[8] then return {'conflict'} end
local at, run, since, left = string.match(last, '^%d+ (%S+) (%S+) (%S+) (%S+)$')
if run ~= ARGV[5] then since, left = text(now), at or '0' end
if last == '' then
    local all = redis.call('HGETALL', KEYS[1])
    for i = 1, #all, 2 do
        local beaten = tonumber(string.match(all[i + 1], '^%d+ (%S+)'))
        if beaten <= now - tonumber(ARGV[10]) then redis.call('HDEL', KEYS[1], all[i]) end
    end
end
redis.call('HSET', KEYS[1], ARGV[2], table.concat({ARGV[4], text(now), ARGV[5], since, left}, ' '))
if tonumber(redis.call('HGET', KEYS[2], ARGV[6]) or 0) < tonumber(ARGV[7]) then
    redis.call('HSET', KEYS[2], ARGV[6], ARGV[7])
end
-- Processes that have not been here for a week are gone, and what they were told of with them.
local clock = tonumber(redis.call('TIME')[1])
redis.call('ZADD', tag .. 'W', clock, ARGV[6])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', tag .. 'W', '-inf', clock - 604800, 'LIMIT', 0, 100)) do
    redis.call('HDEL', KEYS[2], gone)
    redis.call('ZREM', tag .. 'W', gone)
end
if ARGV[9] ~= ARGV[8] then
    if ARGV[9] == '' then redis.call('DEL', tag .. 'g') else redis.call('SET', tag .. 'g', ARGV[9]) end
end
for i = 11, #ARGV, 5 do remember(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]) end
return {'applied'}
